// Every snippet of TypeScript or JavaScript in the READMEs and docs/policies.md compiles under `strict`, as someone who pastes it would
// compile it: beside what `wrangler types` writes in a Worker, and beside Node's types elsewhere.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { root, run, stranger } from "../package/stranger.mjs";

const { folder } = await stranger({ beside: ["hono", "react", "@types/react", "@types/node", "wrangler"] });

const DOCUMENTS = ["README.md", "docs/policies.md", "www/package/README.md"];

const text = (document) => readFileSync(join(root, document), "utf8");

/** The snippets of a document: their code, first line, and whether they have JSX. */
const snippets = (document) =>
  [...text(document).matchAll(/^( *)```(jsx?|tsx?)\n(.*?)^ *```$/gms)].map((match) => ({
    document,
    line: text(document).slice(0, match.index).split("\n").length,
    extension: match[2],
    code: match[3]
      .replaceAll(new RegExp(`^${match[1]}`, "gm"), "")
      // The line says so, and must be right.
      .replaceAll(/^.*\/\/ (does not compile|nor does this)$/gm, "// @ts-expect-error: $1\n$&"),
  }));

const all = DOCUMENTS.flatMap(snippets);
const isOfWorker = ({ code }) => /"tollgate\/(worker|hono)"|(?<!process\.)\benv\b/.test(code);

/** Declarations from the prose around a snippet: values, and packages that are only mentioned. */
const GIVEN = `
  declare const url: string, token: string, key: string, q: string;
  declare function send(): void;
  declare const limiter: import("tollgate").Limiter;
  declare const api: ReturnType<typeof import("tollgate").limitFetch>;
  declare const limitFetch: typeof import("tollgate").limitFetch;
  declare const app: { use(middleware: (request: never, response: never, next: () => void) => void): void };
  declare const ky: { create(options: object): unknown };
  declare function useQuery(options: {
    queryKey: string[];
    queryFn: (context: { signal: AbortSignal }) => unknown;
    retry: boolean;
  }): unknown;
`;
const POLICIES = `export interface Policies { api: never; llm: "requests" | "tokens" }`;

/** The bindings of the documents' configurations, in Wrangler's form. */
const CONFIG = {
  name: "snippets",
  main: "index.ts",
  compatibility_date: "2026-10-01",
  durable_objects: {
    bindings: [
      { name: "KEYS", class_name: "KeyObject" },
      { name: "MAILBOXES", class_name: "Mailbox" },
    ],
  },
  services: [{ binding: "TOLLGATE", service: "my-limits", entrypoint: "Tollgate" }],
  vars: { POLICIES: { api: { rate: 100, period: "1m" } } },
};

for (const [place, wanted, types] of [
  ["a Worker", isOfWorker, ["./worker-configuration.d.ts"]],
  ["a page or a server", (snippet) => !isOfWorker(snippet), ["node", "react"]],
]) {
  test(`every snippet for ${place} compiles under strict`, async () => {
    const project = join(folder, place.replaceAll(" ", "-"));
    mkdirSync(project);
    const found = all.filter(wanted);
    assert.ok(found.length >= 6, `${found.length} snippets`);
    if (place === "a Worker") await writeTypes(project);
    writeFileSync(join(project, "given.d.ts"), GIVEN);
    writeFileSync(join(project, "policies.d.ts"), POLICIES);
    const names = found.map(({ document, line, extension, code }) => {
      const name = `${document.replaceAll("/", "-")}-line-${line}.${extension}`;
      writeFileSync(join(project, name), `${code}\nexport {};\n`);
      return name;
    });
    const options = {
      ...{
        strict: true,
        noEmit: true,
        skipLibCheck: true,
        allowJs: true,
        checkJs: true,
        target: "esnext",
        module: "esnext",
      },
      ...{ moduleResolution: "bundler", jsx: "react-jsx", types },
      lib: place === "a Worker" ? ["esnext"] : ["esnext", "dom", "dom.iterable"],
    };
    writeFileSync(
      join(project, "tsconfig.json"),
      JSON.stringify({ compilerOptions: options, files: ["given.d.ts", ...names] }),
    );
    await run("tsc", ["-p", ".", "--pretty", "false"], project);
  });
}

/** The output of `wrangler types` for this configuration, a Worker with all its classes, and the service it is bound to. */
async function writeTypes(project) {
  const service = join(folder, "my-limits");
  mkdirSync(service);
  writeFileSync(join(service, "wrangler.json"), JSON.stringify({ ...CONFIG, name: "my-limits", services: [] }));
  writeFileSync(join(service, "index.ts"), all.find(({ code }) => code.includes("PolicyRegistry")).code);
  writeFileSync(join(project, "wrangler.json"), JSON.stringify(CONFIG));
  const mailbox = all.find(({ code }) => code.includes("class Mailbox")).code;
  writeFileSync(
    join(project, "index.ts"),
    `export { KeyObject, Tollgate } from "tollgate/worker";\n${mailbox.replace(/^export default.*$/ms, "export default {};")}`,
  );
  await run("wrangler", ["types", "-c", "wrangler.json", "-c", "../my-limits/wrangler.json"], project);
}

test("the binding in docs/policies.md names the service that the command in README.md makes", () => {
  const [, made] = text("README.md").match(/npx tollgate init ([\w-]+)/);
  const [, bound] = text("docs/policies.md").match(/^service = "(.*)"$/m);
  assert.equal(bound, made);
});
