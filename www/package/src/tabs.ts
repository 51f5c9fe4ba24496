// The storage of all tabs of an origin: one transaction over all of them.
import type { Clock } from "./clock.js";

/**
 * Calls `change` with the value stored under `name` and stores what it returns, if anything, in one transaction over all
 * tabs. A transaction that fails is repeated once, over a new connection: `change` may be called twice, and only its last
 * call counts. Rejects if that fails too, or if it all takes longer than {@link PATIENCE_SECONDS}.
 */
export async function transact<State>(
  name: string,
  clock: Clock,
  change: (stored: State | undefined) => State | undefined,
): Promise<void> {
  let isLate = false;
  const attempt = async () => {
    const opened = await open();
    await new Promise<void>((resolve, reject) => {
      const transaction = opened.transaction(STORE, "readwrite");
      const store = transaction.objectStore(STORE);
      const stored: IDBRequest<State | undefined> = store.get(name);
      stored.onsuccess = () => {
        try {
          const state = isLate ? undefined : change(stored.result);
          if (state) store.put(state, name);
        } catch (error) {
          reject(error);
        }
      };
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
  };
  let cancel = () => {};
  const late = new Promise<never>((_, reject) => {
    // Second by second: after a suspension the answer may be there, but behind this timer.
    const wait = (seconds: number) => {
      cancel = clock.at(clock.now() + 1000, () => {
        if (seconds > 1) return wait(seconds - 1);
        isLate = true;
        reject(new Error("IndexedDB does not answer"));
      });
    };
    wait(PATIENCE_SECONDS);
  });
  const again = () => {
    database = undefined;
    return attempt();
  };
  try {
    await Promise.race([attempt().catch(again), late]);
  } finally {
    cancel();
  }
}

function open(): Promise<IDBDatabase> {
  database ??= new Promise((resolve, reject) => {
    const close = () => {
      database = undefined;
    };
    const request = indexedDB.open("tollgate");
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => {
      const { result } = request;
      result.onclose = close; // the user has cleared the site's data
      result.onversionchange = () => {
        close();
        result.close();
      };
      resolve(result);
    };
    request.onerror = () => {
      close();
      reject(request.error);
    };
  });
  return database;
}

let database: Promise<IDBDatabase> | undefined;
const STORE = "limits";
/** Longer than a slow disk takes to open a database, but short enough for someone waiting for an answer. */
const PATIENCE_SECONDS = 3;
