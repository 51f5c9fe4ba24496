/** The bytes of the module. Made by .ci/build-package. */
export function wasm(): Uint8Array<ArrayBuffer>;
