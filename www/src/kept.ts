// What all tabs of an origin have in common: a place to keep things, and a line to stand in.

/**
 * Calls `change` with what is kept under `name`, alone among all tabs, and keeps what it returns; nothing, if that is
 * `undefined`. Rejects where nothing can be kept; then `change` may have been called or not.
 */
export async function transact<State>(name: string, change: (kept: State | undefined) => State | undefined): Promise<void> {
  const transaction = (await open()).transaction(STORE, "readwrite");
  return new Promise((resolve, reject) => {
    const store = transaction.objectStore(STORE);
    const kept: IDBRequest<State | undefined> = store.get(name);
    kept.onsuccess = () => {
      const next = change(kept.result);
      if (next !== undefined) store.put(next, name);
    };
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });
}

/** Calls `turn` when it is its turn among all tabs. A tab that is closed, or crashes, leaves the line. */
export async function inLine(name: string, turn: () => Promise<void>, options: LockOptions = {}): Promise<void> {
  const locks = globalThis.navigator?.locks;
  if (!locks) return warn("Web Locks"), turn();
  await locks.request(`tollgate:${name}`, options, (lock) => lock && turn());
}

/** Says once that something is missing. */
export function warn(what: unknown): void {
  if (!hasWarned) console.warn("tollgate: limits are for this tab alone:", what);
  hasWarned = true;
}

function open(): Promise<IDBDatabase> {
  return (database ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("tollgate");
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => {
      request.result.onclose = () => (database = undefined); // somebody cleared the site's data
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  }));
}

let database: Promise<IDBDatabase> | undefined;
let hasWarned = false;
const STORE = "limits";
