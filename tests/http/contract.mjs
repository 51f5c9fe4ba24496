// Checks every answer of these tests against the contract, src/api/openapi.json.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { isIPv4, isIPv6 } from "node:net";
import Ajv from "ajv/dist/2020.js";

export const contract = JSON.parse(readFileSync(new URL("../../src/api/openapi.json", import.meta.url), "utf8"));

const ajv = new Ajv({ strict: true, strictRequired: false, allowUnionTypes: true, allErrors: true });
ajv.addFormat("ipv4", isIPv4).addFormat("ipv6", isIPv6);
ajv.addVocabulary(["openapi", "info", "servers", "security", "paths", "components", "example"]);
ajv.addSchema(contract, "contract");

/** Throws unless the contract allows `answer` to this method and path: its status, each of its headers, and its body. */
export function assertInContract(method, path, answer) {
  if (PATHS_OF_THE_TESTS.has(path)) return;
  const { status } = answer;
  const described = responsesTo(method, path.split("?")[0], status);
  assert.ok(described.length > 0, `the contract has no ${status} for ${method} ${path}: ${answer.text}`);
  const faults = described.map(({ value, pointer }) => faultsOf(method, value, pointer, answer));
  if (faults.some((list) => list.length === 0)) return;
  throw new Error(
    `${method} ${path}: this ${status} is not in the contract\n${faults.flat().join("\n")}\n${answer.text}`,
  );
}

/** Throws unless `value` is valid for the schema at `pointer`, such as "/components/schemas/Key". */
export function assertValid(pointer, value) {
  const faults = schemaFaults(pointer, value);
  assert.deepEqual(faults, [], `${pointer}: ${JSON.stringify(value)}`);
}

/** The examples of a body, by name. A single one is called "example". */
export function examplesOf({ example, examples = {} }) {
  if (example !== undefined) return { example };
  return Object.fromEntries(
    Object.entries(examples).map(([name, described]) => [name, resolved(described).value.value]),
  );
}

/** The JSON pointer of a path of names. */
export function pointerTo(...names) {
  return names.map((name) => `/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}

/** The responses possible for this status: several only if the contract has no such path or method. */
function responsesTo(method, path, status) {
  if (method === "OPTIONS") return status === 204 ? [named("Preflight")] : [];
  const described = Object.keys(contract.paths).find((pattern) => isPathOf(pattern, path));
  const operation = contract.paths[described]?.[method.toLowerCase()];
  if (operation) {
    const response = operation.responses[status];
    const pointer = pointerTo("paths", described, method.toLowerCase(), "responses", String(status));
    return response ? [resolved(response, pointer)] : [];
  }
  return ELSEWHERE.map(named).filter(({ value }) => statusOf(value) === status);
}

/** Whether this is a path of the contract's, which may have one variable part, as in `/v1/policies/{name}`. */
function isPathOf(pattern, path) {
  const [start, variable] = pattern.split("{");
  return variable === undefined ? pattern === path : path.startsWith(start) && !path.slice(start.length).includes("/");
}

/** The answers to a path or method that the contract lacks. */
const ELSEWHERE = ["Unauthorized", "NotFound", "MethodNotAllowed", "Misconfigured", "Unavailable"];

const named = (name) => resolved({ $ref: `#/components/responses/${name}` });

/** What `object`, which is at `pointer`, is or refers to, and the pointer to that. */
export function resolved(object, pointer) {
  if (!object.$ref) return { value: object, pointer };
  const at = object.$ref.slice(1);
  return { value: valueAt(at), pointer: at };
}

const valueAt = (pointer) =>
  pointer
    .split("/")
    .slice(1)
    .reduce((value, name) => value[unescaped(name)], contract);
const unescaped = (name) => name.replaceAll("~1", "/").replaceAll("~0", "~");

/** The status of a problem's response, which its schemas have as a constant. */
function statusOf({ content }) {
  const { schema } = content["application/problem+json"];
  return valueAt((schema.$ref ?? schema.oneOf[0].$ref).slice(1)).properties.status.const;
}

function faultsOf(method, response, pointer, { headers, body, text }) {
  const faults = headerFaults(response.headers ?? {}, pointer, headers);
  const type = headers["content-type"];
  if (method === "HEAD" || !response.content) {
    if (text !== "") faults.push("there is a body");
    if (!response.content && method !== "HEAD" && type !== undefined) faults.push(`there is a content-type: ${type}`);
  } else if (!(type in response.content)) {
    faults.push(`the content-type is ${type}, not ${Object.keys(response.content)}`);
  } else {
    faults.push(...schemaFaults(pointer + pointerTo("content", type, "schema"), body));
  }
  return faults;
}

function headerFaults(described, pointer, headers) {
  const faults = [];
  const known = new Set();
  for (const [name, header] of Object.entries(described)) {
    const found = headers[name.toLowerCase()];
    known.add(name.toLowerCase());
    const { value: resolvedHeader, pointer: at } = resolved(header, pointer + pointerTo("headers", name));
    if (found === undefined) {
      if (resolvedHeader.required) faults.push(`the header ${name} is missing`);
      continue;
    }
    const value = resolvedHeader.schema.type === "integer" && /^\d+$/.test(found) ? Number(found) : found;
    faults.push(...schemaFaults(`${at}/schema`, value).map((fault) => `the header ${name}: ${found}: ${fault}`));
  }
  for (const name of Object.keys(headers)) {
    if (!known.has(name) && !OF_THE_CONNECTION.has(name) && !OF_THE_TESTS.has(name))
      faults.push(`the header ${name} is not described`);
  }
  return faults;
}

/** `content-type` is checked with the body. */
const OF_THE_CONNECTION = new Set(["connection", "content-length", "content-type", "keep-alive", "transfer-encoding"]);

/** Paths answered by modules around or before the Worker: alarmed.mjs, calling.mjs, evicting.mjs, and the package's before.mjs. */
const PATHS_OF_THE_TESTS = new Set(["/alarms", "/before", "/evict", "/rpc"]);

/** Headers added by modules around the Worker: faulty.mjs. */
const OF_THE_TESTS = new Set(["x-asked", "x-acts"]);

function schemaFaults(pointer, value) {
  const validate = ajv.getSchema(`contract#${pointer}`);
  assert.ok(validate, `the contract has no schema at ${pointer}`);
  if (validate(value)) return [];
  return validate.errors.map(
    ({ instancePath, message, params }) => `${instancePath} ${message} ${JSON.stringify(params)}`,
  );
}
