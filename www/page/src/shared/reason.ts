// The reason for a missing answer, in words.

export function reasonOf(error: unknown): string {
  const { code, name, message } = Object(error);
  if (code === "network_failed" || name === "TypeError") return "The service cannot be reached";
  if (code === "timeout" || name === "TimeoutError") return "The service did not answer in time";
  return message ?? String(error);
}
