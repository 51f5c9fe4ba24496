//! Tollgate on Cloudflare Workers: the only code that reads the server's clock, its storage and its secrets.
//!
//! The front answers HTTP in whichever place a request arrives. The object of a key, a Durable Object of which there is
//! one in the world, decides. `entry.mjs` is the module that the runtime loads.

mod clock;
mod front;
mod object;
mod settings;

use worker::{Context, Env, Headers, Request, Response, ResponseBuilder, Result, event};

use crate::api::Reply;

/// The entry of every request.
#[event(fetch)]
async fn fetch(request: Request, env: Env, _context: Context) -> Result<Response> {
    #[cfg(feature = "test-clock")]
    clock::set_by(&request);
    response(front::reply(request, &env).await)
}

fn response(reply: Reply) -> Result<Response> {
    let headers = Headers::new();
    for (name, value) in &reply.headers {
        headers.set(name, value)?;
    }
    let builder = ResponseBuilder::new().with_status(reply.status).with_headers(headers);
    if reply.body.is_empty() { Ok(builder.empty()) } else { Ok(builder.fixed(reply.body.into_bytes())) }
}
