// How far long work is, on stderr.

/** Does work that says how far it is; every few seconds people are told, if it lasts so long. */
export async function during<T>(work: (say: (progress: string) => void) => Promise<T>): Promise<T> {
  let latest = "";
  const timer = setInterval(() => console.error(`tollgate: ${latest}`), EVERY_MS);
  try {
    return await work((progress) => {
      latest = progress;
    });
  } finally {
    clearInterval(timer);
  }
}

const EVERY_MS = 2_000;
