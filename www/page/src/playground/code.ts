// The code for a request, ready to copy.
import { mayWait, namesCost } from "../levels/track.ts";
import { RESERVATION } from "./answer.ts";
import type { Policy } from "./policy.ts";
import type { Ask } from "./trace.ts";

export const LANGUAGES = [
  ["curl", "curl"],
  ["fetch", "fetch"],
  ["package", "Package"],
  ["embedded", "In your Worker"],
] as const;

export type Language = (typeof LANGUAGES)[number][0];

/** The code in a language that sends this to a service at `url`. */
export function codeFor(
  language: Language,
  { name }: Policy,
  { verb, cost }: Pick<Ask, "verb" | "cost">,
  url: string,
): string {
  const path = mayWait(verb) ? "consume" : verb;
  const ask = {
    policy: name,
    key: "alice",
    ...(namesCost(verb) && { cost }),
    ...(path !== verb && { mode: verb }),
    ...((verb === "settle" || verb === "cancel") && { reservation: RESERVATION }),
  };
  const json = JSON.stringify(ask);
  const object = json
    .replace(/"(\w+)":/g, "$1: ")
    .replaceAll(",", ", ")
    .replace(/\{/g, "{ ")
    .replace(/\}/g, " }");
  switch (language) {
    case "curl":
      return `curl -i ${url}/v1/${path} \\
  -H "Authorization: Bearer $TOKEN" \\
  -H 'Content-Type: application/json' \\
  -d '${json}'`;
    case "fetch":
      return `const response = await fetch("${url}/v1/${path}", {
  method: "POST",
  headers: { Authorization: \`Bearer \${token}\`, "Content-Type": "application/json" },
  body: JSON.stringify(${object}),
});
const decision = await response.json();`;
    case "package":
      return `import { Client } from "tollgate/client";

const client = new Client({ url: "${url}", token });
const decision = await client.${path}(${object});`;
    case "embedded":
      return `import { tollgate } from "tollgate/worker";

const decision = await tollgate(env).${path}(${object});
if (!decision.allowed) return decision.response();`;
  }
}
