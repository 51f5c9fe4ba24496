// What all tabs of an origin share: a database and a lock.

/** Whether this tab limits alone, because something is missing or has failed. */
export let isAlone = false;

/** Limits this tab alone from now on. The first call says why on the console. */
export function goAlone(why: unknown): void {
  if (!isAlone) console.warn("tollgate: limits are for this tab alone:", why);
  isAlone = true;
}

/**
 * Calls `change` with the value stored under `name` and stores what it returns, in one transaction over all tabs. If
 * that fails, this tab goes alone; `change` may or may not have been called.
 */
export async function transact<State>(name: string, change: (stored: State | undefined) => State): Promise<void> {
  if (isAlone) return;
  try {
    const transaction = (await open()).transaction(STORE, "readwrite");
    await new Promise<void>((resolve, reject) => {
      const store = transaction.objectStore(STORE);
      const stored: IDBRequest<State | undefined> = store.get(name);
      stored.onsuccess = () => {
        try {
          store.put(change(stored.result), name);
        } catch (error) {
          reject(error); // stored by a version of this package that this one does not understand
        }
      };
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
  } catch (error) {
    goAlone(error);
  }
}

/**
 * Calls `turn` once this tab holds the lock of that name. Tabs queue for it; one that is closed or crashes releases it.
 */
export function withLock<Result>(
  name: string,
  options: LockOptions,
  turn: (lock: Lock | null) => Promise<Result>,
): Promise<Result> {
  return isAlone ? turn(null) : navigator.locks.request(`tollgate:${name}`, options, turn);
}

function open(): Promise<IDBDatabase> {
  database ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("tollgate");
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return database;
}

let database: Promise<IDBDatabase> | undefined;
const STORE = "limits";
