// Progress of long work, on stderr.

/** Does work that reports its progress, and prints it every few seconds if it takes that long. */
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
