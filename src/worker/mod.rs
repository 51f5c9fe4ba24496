use worker::{Context, DurableObject, Env, Request, Response, Result, State, durable_object, event};

#[event(fetch)]
async fn fetch(_request: Request, _env: Env, _context: Context) -> Result<Response> {
    Response::ok("{\"status\":\"ok\"}")
}

#[durable_object(fetch)]
pub struct KeyObject {}

impl DurableObject for KeyObject {
    fn new(_state: State, _env: Env) -> Self {
        Self {}
    }
    async fn fetch(&self, _request: Request) -> Result<Response> {
        Response::ok("object")
    }
}
