"""What schemathesis must know beside the contract: the policies of this deployment, and what a schema cannot say."""

import itertools
import json

import schemathesis
from schemathesis import GenerationMode

POLICIES = ["narrow", "wide"]  # main.mjs starts the Worker with these, each with the limits `a` and `b`


@schemathesis.hook
def before_load_schema(_context, raw_schema):
    """
    Names in requests are those of the deployment, or most of them would end as a 404 or as a cost without a limit. Every request
    names a key: only one with a grant may leave it out, and these are sent with a token. None brings limits of its own: these
    names are those of policies.
    """
    schemas = raw_schema["components"]["schemas"]
    for name, schema in schemas.items():
        if name.endswith("Request") and "key" in schema.get("properties", {}):
            schema["required"] = sorted({"key", *schema["required"]})
            schema["properties"].pop("limits", None)
    schemas["Policy"] = {"enum": POLICIES}
    for name in ("Cost", "WantedTokens"):
        number, by_limit = schemas[name]["oneOf"]
        del by_limit["propertyNames"], by_limit["minProperties"], by_limit["maxProperties"]
        by_limit |= {"properties": {"a": number, "b": number}, "required": ["a", "b"], "additionalProperties": False}


counter = itertools.count()


@schemathesis.hook
def before_call(_context, case, _kwargs):
    """
    Each valid Idempotency-Key is new: examples and short ones come again and again, and would all end as a 422. A session needs the
    header that Cloudflare sets.
    """
    if case.path == "/v1/session":
        case.headers["CF-Connecting-IP"] = "192.0.2.1"
    key = (case.headers or {}).get("Idempotency-Key")
    if key and is_positive(case):
        number = f"-{next(counter)}"
        case.headers["Idempotency-Key"] = key[: 255 - len(number)] + number


@schemathesis.check
def valid_data_is_no_bad_request(_context, response, case):
    """A valid request may cost too much (400), but not be a `bad-request`."""
    if case.path in ("/v1/policies/{name}", "/v1/overrides"):
        return  # what makes a valid policy or override, and which headers or parameters go together, no schema says
    if case.path == "/v1/audit" and "key" in (case.query or {}):
        return  # nor that a parameter is JSON
    if response.status_code == 400 and is_positive(case) and not is_beyond_the_schema(case.body):
        kind = response.json()["type"]
        assert kind == "urn:problem-type:tollgate:cost-too-large", f"valid, but refused as {kind}"


def is_positive(case):
    return case.meta is not None and case.meta.generation.mode == GenerationMode.POSITIVE


def is_beyond_the_schema(body):
    """A schema counts characters where the service counts bytes, cannot forbid the same budget twice, and does not say which policies take a key."""
    if not isinstance(body, dict) or "captcha" in body:
        return False
    items = body.get("requests", [body])
    if any(item.get("key", []) == [] for item in items):
        return True
    # Two addresses may be of one network.
    budgets = [(item.get("policy"), "ip" if isinstance(item["key"], dict) else json.dumps(item["key"])) for item in items]
    return len(set(budgets)) < len(budgets) or any(size_of(item["key"]) > 512 for item in items)


def size_of(key):
    return sum(len(part.encode()) for part in ([key] if isinstance(key, str) else key))
