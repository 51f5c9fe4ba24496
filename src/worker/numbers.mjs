// What frontends and objects say to each other, on the way: texts of numbers. One of format 2 is an array of its numbers there.

export function sent(text) {
  return text.startsWith("2 ") ? Float64Array.from(text.split(" "), Number) : text;
}

export function received(sent) {
  return typeof sent === "string" ? sent : sent.join(" ");
}
