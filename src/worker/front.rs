//! Where requests arrive: who asks, what, and which object decides.

use futures_util::StreamExt;
use js_sys::Float64Array;
use wasm_bindgen::prelude::{JsCast, JsValue, wasm_bindgen};
use worker::{Env, Request, console_error};

use super::settings::Settings;
use crate::api::{Answer, Ask, MAX_BODY_LEN, Problem, Reply, require_json};

/// The response to any request whatever.
pub(super) async fn reply(request: Request, env: &Env) -> Reply {
    if method(&request) == "OPTIONS" {
        return Reply::preflight();
    }
    decided(request, env).await.unwrap_or_else(|problem| problem.reply())
}

async fn decided(mut request: Request, env: &Env) -> Result<Reply, Problem> {
    let settings = Settings::of(env)?;
    let path = request.path();
    if path == "/healthz" {
        require_method(&request, &["GET", "HEAD"], "GET, HEAD")?;
        return Ok(Reply::healthy());
    }
    settings.credentials.allow(header(&request, "authorization").as_deref())?;
    let verb = match path.as_str() {
        "/v1/consume" => Verb::Consume,
        "/v1/peek" => Verb::Peek,
        _ => return Err(Problem::NotFound { path }),
    };
    require_method(&request, &["POST"], "POST")?;
    require_json(header(&request, "content-type").as_deref())?;
    let body = body(&mut request).await?;
    let ask = Ask::parse(&body)?;
    let Some(policy) = settings.policies.get(&ask.policy) else {
        return Err(Problem::UnknownPolicy { policy: ask.policy.into_owned() });
    };
    let max = policy.limit().config().capacity;
    if ask.cost > max {
        return Err(Problem::CostTooLarge { policy: policy.name().to_owned(), cost: ask.cost, max });
    }
    let object_name = settings.credentials.object_name(&ask.key);
    let answer = ask_object(env, &object_name, verb, policy.name(), ask.cost).await.map_err(|error| {
        // The name is a keyed hash, so the log tells which object without telling whose.
        console_error!("object {object_name} did not answer: {error:?}");
        Problem::Unavailable
    })?;
    Ok(answer.reply(policy, ask.cost))
}

#[derive(Clone, Copy)]
enum Verb {
    Consume,
    Peek,
}

fn require_method(request: &Request, methods: &[&str], allow: &'static str) -> Result<(), Problem> {
    let method = method(request);
    if methods.contains(&method.as_str()) { Ok(()) } else { Err(Problem::MethodNotAllowed { method, allow }) }
}

/// As the client sent it: [`Request::method`] calls every method that it does not know GET.
fn method(request: &Request) -> String {
    request.inner().method()
}

fn header(request: &Request, name: &str) -> Option<String> {
    request.headers().get(name).ok().flatten()
}

/// The body, if it is not too long. A length that is announced is believed, since the runtime holds a client to it;
/// without one the body is counted as it comes.
async fn body(request: &mut Request) -> Result<Vec<u8>, Problem> {
    let unreadable = |error: worker::Error| Problem::BadRequest { detail: format!("the body cannot be read: {error}") };
    match header(request, "content-length").and_then(|length| length.parse::<u64>().ok()) {
        Some(length) if length > MAX_BODY_LEN as u64 => Err(Problem::BodyTooLarge),
        Some(_) => request.bytes().await.map_err(unreadable),
        None => {
            let mut stream = request.stream().map_err(unreadable)?;
            let mut body = Vec::new();
            while let Some(chunk) = stream.next().await {
                body.extend(chunk.map_err(unreadable)?);
                if body.len() > MAX_BODY_LEN {
                    return Err(Problem::BodyTooLarge);
                }
            }
            Ok(body)
        }
    }
}

async fn ask_object(env: &Env, name: &str, verb: Verb, policy: &str, cost: u64) -> Result<Answer, JsValue> {
    // A new stub each time: one that has failed stays broken.
    let object: KeyObjectRpc = env.durable_object("KEYS")?.get_by_name(name)?.into_rpc();
    #[expect(clippy::cast_precision_loss, reason = "a cost is at most 2⁵³ − 1")]
    let cost = cost as f64;
    let answer = match verb {
        Verb::Consume => object.consume(policy, cost).await,
        Verb::Peek => object.peek(policy, cost).await,
    }?;
    let numbers = answer.dyn_into::<Float64Array>()?.to_vec();
    Answer::from_numbers(&numbers).ok_or_else(|| JsValue::from_str("numbers that are no answer"))
}

#[wasm_bindgen]
extern "C" {
    /// [`KeyObject`](super::object::KeyObject) as it is seen from outside.
    type KeyObjectRpc;

    #[wasm_bindgen(method, catch)]
    async fn consume(this: &KeyObjectRpc, policy: &str, cost: f64) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(method, catch)]
    async fn peek(this: &KeyObjectRpc, policy: &str, cost: f64) -> Result<JsValue, JsValue>;
}
