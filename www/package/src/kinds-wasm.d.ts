/** The bytes of the module. Made by scripts/build-package. */
export function wasm(): Uint8Array<ArrayBuffer>;
