// Prints the module `wasm.js` of the npm package: a WebAssembly file as text, and its decoder.
//
// Nearly every byte is one character, so repetitions survive for the compressor: a quarter smaller, once compressed,
// than base64 or hexadecimal. Characters are those from # to ~, 92 of them; a byte b is the one at b + 1, or, further
// on, that after a `!` or a blank.
import { readFileSync } from "node:fs";

const COUNT = 92;
const FIRST = 35;
const PREFIXES = ["", "!", " "]; // 34 minus their codes is how often COUNT has to be added

const text = Array.from(readFileSync(process.argv[2]), (byte) => {
  const place = (byte + 1) % 256;
  return PREFIXES[Math.floor(place / COUNT)] + String.fromCharCode(FIRST + (place % COUNT));
}).join("");
/** The bytes of `text`: printed, so the same is checked. */
const BYTES =
  "Uint8Array.from(text.match(/[ !]?./g), (c) => c.charCodeAt(c.length - 1) - 36 + 92 * Math.max(0, 34 - c.charCodeAt()))";
const bytesOf = new Function("text", `return ${BYTES}`);

if (Buffer.compare(bytesOf(text), readFileSync(process.argv[2])) !== 0)
  throw new Error("the text does not decode to the bytes");
console.log(`const text = ${JSON.stringify(text)};\nexport const wasm = () => ${BYTES};`);
