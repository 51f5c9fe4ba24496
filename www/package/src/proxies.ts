// The warning of a server behind a proxy that it does not know.

let isWarned = false;

/**
 * Warns, once in a process, that all clients of a proxy with this address share one budget, if the request has a header in which
 * proxies report the client's address.
 */
export function warnOfProxy(has: (header: string) => boolean, address: string, advice: string): void {
  const header = isWarned ? undefined : REPORTS.find((name) => has(name.toLowerCase()));
  if (header === undefined) return;
  isWarned = true;
  console.warn(
    `tollgate: a request with \`${header}\` has come from ${address}. If that is your proxy, all of its clients share one budget: ${advice}`,
  );
}

const REPORTS = ["X-Forwarded-For", "Forwarded", "X-Real-IP"];
