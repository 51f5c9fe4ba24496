// What all tabs of an origin have in common: a place to keep things, and a line to stand in.

/** Whether this tab is on its own, because something is missing or has failed. */
export let isAlone = false;

/** Says why this tab is on its own from now on; once. */
export function beAlone(why: unknown): void {
  if (!isAlone) console.warn("tollgate: limits are for this tab alone:", why);
  isAlone = true;
}

/**
 * Calls `change` with what is kept under `name`, alone among all tabs, and keeps what it returns. If that fails, the
 * tab is on its own; then `change` may have been called or not.
 */
export async function transact<State>(name: string, change: (kept: State | undefined) => State): Promise<void> {
  if (isAlone) return;
  try {
    const transaction = (await open()).transaction(STORE, "readwrite");
    await new Promise<void>((resolve, reject) => {
      const store = transaction.objectStore(STORE);
      const kept: IDBRequest<State | undefined> = store.get(name);
      kept.onsuccess = () => {
        try {
          store.put(change(kept.result), name);
        } catch (error) {
          reject(error); // it was kept by a version that this one does not know
        }
      };
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
  } catch (error) {
    beAlone(error);
  }
}

/** Calls `turn` when it is its turn among all tabs. A tab that is closed, or crashes, leaves the line. */
export function inLine<Result>(
  name: string,
  options: LockOptions,
  turn: (lock: Lock | null) => Promise<Result>,
): Promise<Result> {
  return isAlone ? turn(null) : navigator.locks.request(`tollgate:${name}`, options, turn);
}

function open(): Promise<IDBDatabase> {
  return (database ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("tollgate");
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  }));
}

let database: Promise<IDBDatabase> | undefined;
const STORE = "limits";
