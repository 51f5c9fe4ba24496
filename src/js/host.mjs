// What the class needs of JavaScript, beside numbers. Text is made here because in Rust formatting one number alone
// takes more bytes than this file; bytes are read and written here because a slice would need an allocation.

// The number `given` is not one that the parameter `name` can be.
export function throwNumber(name, given, min, max) {
  const fault = given < min ? "too_small" : given > max ? "too_large" : "not_whole";
  const snake = name.replace(/[A-Z]/g, (letter) => "_" + letter.toLowerCase());
  const message = `${name} must be a whole number from ${min} to ${max}, not ${given}`;
  throw Object.assign(new RangeError(message), { code: `${snake}_${fault}`, min, max });
}

// The bytes are not a state of this bucket.
export function throwState(code, message) {
  throw Object.assign(new TypeError(message), { code });
}

// WebAssembly is in the middle of a call when it asks for these, so they never throw, whatever they are given.

// The number at `i`, or NaN if there is none.
export function byteAt(bytes, i) {
  try {
    const byte = bytes[i];
    return typeof byte === "number" ? byte : NaN;
  } catch {
    return NaN;
  }
}

// Whether `value` is at `i` now.
export function setByte(bytes, i, value) {
  try {
    bytes[i] = value;
    return bytes[i] === value;
  } catch {
    return false;
  }
}
