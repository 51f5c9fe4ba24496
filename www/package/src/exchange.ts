// Exchanges a text with a WebAssembly module of the service's own Rust: see src/exchange.rs. Nothing is decided here.

/** The exports that {@link exchanged} uses. */
export interface Exchange {
  readonly memory: { readonly buffer: ArrayBuffer };
  text(length: number): number;
}

/** The answer to a question. `replace` replaces it by its answer in the module's memory, and returns the answer's length. */
export function exchanged({ memory, text }: Exchange, question: string, replace: () => number): string {
  const bytes = new TextEncoder().encode(question);
  const address = text(bytes.length); // before the memory is read: it is replaced when it grows
  new Uint8Array(memory.buffer, address, bytes.length).set(bytes);
  const length = replace();
  const answer = text(length);
  return new TextDecoder().decode(new Uint8Array(memory.buffer, answer, length));
}
