// Messages between frontends and objects in transit: text, or for format 2 an array of its numbers.

export function sent(text) {
  return text.startsWith("2 ") ? Float64Array.from(text.split(" "), Number) : text;
}

export function received(sent) {
  return typeof sent === "string" ? sent : sent.join(" ");
}
