// Replies, as Rust writes them: the status, a line for each header, an empty line, the body.

/** Where the body begins, and the line before it ends. */
const END_OF_HEAD = "\n\n";

export function statusOf(text) {
  return Number(text.slice(0, 3));
}

export function bodyOf(text) {
  return text.slice(text.indexOf(END_OF_HEAD) + END_OF_HEAD.length);
}

/** The values of the headers by their names, which are in lower case. */
export function headersOf(text) {
  const headers = {};
  for (let at = text.indexOf("\n") + 1; text[at] !== "\n"; ) {
    const colon = text.indexOf(": ", at);
    const end = text.indexOf("\n", colon);
    headers[text.slice(at, colon)] = text.slice(colon + 2, end);
    at = end + 1;
  }
  return headers;
}

export function responseOf(text) {
  return new Response(bodyOf(text) || null, { status: statusOf(text), headers: headersOf(text) });
}
