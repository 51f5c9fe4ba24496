// Writes llms.txt (https://llmstxt.org) into the package: what Tollgate is, and which document says what, for programs that read before
// they write code. Its sentences are those of the documents.
//   node scripts/llms.mjs FOLDER
//
// Links lead to the files of the released version if the package knows its repository (scripts/name-repository), else to this checkout's.
import { readFileSync, writeFileSync } from "node:fs";

/** Those that users read, in the order in which they need them. */
const DOCUMENTS = {
  "README.md": "Start here",
  "docs/limits.md": "Which limit for what",
  "docs/policies.md": "Policies, and deployment",
  "www/package/README.md": "The npm package",
  "docs/http.md": "HTTP",
  "docs/admin.md": "HTTP for operators",
  "docs/failures.md": "Failures",
  "docs/recipes.md": "Recipes",
  "docs/testing.md": "Tests of programs that use it",
  "docs/binding.md": "Beside Cloudflare's rate-limiting binding",
  "docs/scale.md": "Scale and cost",
  "src/README.md": "The crate",
  "benches/README.md": "Figures",
};

const [folder] = process.argv.slice(2);
const { repository, version } = JSON.parse(readFileSync(`${folder}/package.json`));
const base = repository ? `${repository.url.replaceAll(/^git\+|\.git$/g, "")}/blob/v${version}/` : "";

/** A document's first paragraph, which may be missing, and the names of its sections. */
function outline(path) {
  const blocks = readFileSync(path, "utf8")
    .replaceAll(/^```.*?^```/gms, "")
    .replaceAll(/\[([^\]]+)\]\([^)]+\)/g, "$1") // links, which would start elsewhere
    .split(/\n{2,}/);
  const [first] = blocks.slice(1);
  return {
    about: first.startsWith("#") ? undefined : first.replaceAll("\n", " "),
    sections: blocks.flatMap((block) => (block.startsWith("## ") ? [block.slice("## ".length)] : [])),
  };
}

const summary = outline("README.md").about;
const lines = Object.entries(DOCUMENTS).map(([path, title]) => {
  const { about, sections } = outline(path);
  const parts = [about !== summary && about, sections.length > 0 && `Sections: ${sections.join("; ")}.`];
  return `- [${title}](${base}${path}): ${parts.filter(Boolean).join(" ")}`;
});
const text = `# Tollgate\n\n> ${summary}\n\n## Documents\n\n${lines.join("\n")}\n`;
writeFileSync(`${folder}/llms.txt`, text);
