// The schemas of the contract as TypeScript: `export interface` or `export type` for each, by its name.

/** Throws for an unknown keyword, so that no part of a schema is ignored. */
export function typesOf({ components }) {
  const types = Object.entries(components.schemas).map(([name, schema]) => `export type ${name} = ${typeOf(schema)};`);
  return `${types.join("\n")}\n`;
}

function typeOf(schema) {
  const unknown = Object.keys(schema).filter((keyword) => !KNOWN.has(keyword));
  if (unknown.length > 0) throw new Error(`no type for the keywords ${unknown} of ${JSON.stringify(schema)}`);
  const parts = [];
  if (schema.$ref) parts.push(schema.$ref.split("/").at(-1));
  if ("const" in schema) parts.push(JSON.stringify(schema.const));
  if (schema.enum) parts.push(union(schema.enum.map((value) => JSON.stringify(value))));
  if (schema.oneOf) parts.push(union(schema.oneOf.map(typeOf)));
  parts.push(...(schema.allOf ?? []).map(typeOf));
  if (parts.length > 0) parts.push(...requiredOf(schema, parts.join(" & ")));
  else if (schema.type && !schema.properties)
    parts.push(union([schema.type].flat().map((type) => PRIMITIVES[type](schema))));
  if (schema.properties) parts.push(objectOf(schema));
  return parts.join(" & ") || "unknown";
}

/** The members that a schema requires of those it is composed of. */
function requiredOf({ properties = {}, required = [] }, composed) {
  const names = required.filter((name) => !(name in properties)).map((name) => JSON.stringify(name));
  return names.length > 0 ? [`Required<Pick<${composed}, ${names.join(" | ")}>>`] : [];
}

const union = (types) => `(${types.join(" | ")})`;

function objectOf({ properties, required = [] }) {
  const members = Object.entries(properties).map(
    ([name, schema]) => `readonly ${JSON.stringify(name)}${required.includes(name) ? "" : "?"}: ${typeOf(schema)};`,
  );
  return `{ ${members.join(" ")} }`;
}

const PRIMITIVES = {
  array: ({ items }) => `readonly ${typeOf(items)}[]`.replace(/^readonly (.* & .*)\[\]$/, "readonly ($1)[]"),
  boolean: () => "boolean",
  integer: () => "number",
  null: () => "null",
  number: () => "number",
  object: ({ additionalProperties }) =>
    `{ readonly [name: string]: ${additionalProperties ? typeOf(additionalProperties) : "unknown"} }`,
  string: () => "string",
};

/** Keywords with their own type, and those that narrow a type further than TypeScript can. */
const KNOWN = new Set([
  ...["$ref", "const", "enum", "oneOf", "allOf", "type", "properties", "required", "items", "additionalProperties"],
  ...["description", "default", "examples", "pattern", "propertyNames", "unevaluatedProperties", "dependentRequired"],
  ...[
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
  ],
  ...["maxProperties", "anyOf", "format"],
]);
