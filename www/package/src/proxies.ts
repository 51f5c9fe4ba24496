// The warning of a server behind a proxy that it does not know.

/** A function that warns, when it is first called, that all clients of a proxy with this address share one budget. */
export function proxyWarning(advice: string): (address: string) => void {
  let isWarned = false;
  return (address) => {
    if (isWarned) return;
    isWarned = true;
    console.warn(
      `tollgate: a request with \`X-Forwarded-For\` has come from ${address}. If that is your proxy, all of its clients share one budget: ${advice}`,
    );
  };
}
