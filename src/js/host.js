// What the class needs of JavaScript, beside numbers. Text is made here because in Rust formatting one number alone
// takes more bytes than this file; bytes are read and written here because a slice would need an allocation.
//
// WebAssembly is in the middle of a call when it asks for one of these, so none of them may throw: an exception would
// leave the stack in its memory where it is, a little lower each time. Errors wait in `fault` until the call is over.

let fault;

// The number `given` is not one that the parameter `name` can be.
export function faultNumber(name, given, min, max) {
  const wrong = given < min ? "too_small" : given > max ? "too_large" : "not_whole";
  const snake = name.replace(/[A-Z]/g, (letter) => "_" + letter.toLowerCase());
  const message = `${name} must be a whole number from ${min} to ${max}, not ${given}`;
  fault = Object.assign(new RangeError(message), { code: `${snake}_${wrong}`, min, max });
}

// The bytes are not a state of this bucket.
export function faultState(code, message) {
  fault = Object.assign(new TypeError(message), { code });
}

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

// Makes the methods of the class throw their faults. Called once, before anybody else has the class.
export function throwFaults(bucket) {
  const { constructor: Bucket } = bucket;
  const methods = Bucket.prototype;
  bucket.free();
  for (const name of ["tokenBucket", "fixedWindow"]) {
    const make = Bucket[name];
    Bucket[name] = (...numbers) => orThrow(make(...numbers));
  }
  for (const name of ["peek", "reserve", "borrow", "consumeUpTo", "charge", "refund", "reset", "remaining", "owed", "fullAt", "save", "restore"]) {
    const method = methods[name];
    methods[name] = function (a, b, c) {
      return orThrow(method.call(this, a, b, c));
    };
  }
  // The same, apart from the others, so that engines see which one it is and make it one piece of code.
  const { consume } = methods;
  methods.consume = function (now, cost) {
    return orThrow(consume.call(this, now, cost));
  };
}

function orThrow(result) {
  if (fault === undefined) return result;
  const error = fault;
  fault = undefined;
  throw error;
}
