//! A frontend and its calls, printed: what they answer by, and no secret.

use tollgate::frontend::{Asked, LastStep};

use super::sessions::DEPLOYMENT;
use super::world::{ABOUT_K, CONSUMER, World};

#[test]
fn what_a_frontend_answers_by_is_printed() {
    let mut world = World::of(&DEPLOYMENT);
    let fresh = format!("{:?}", world.service);
    assert!(fresh.contains("visits"), "its policies: {fresh}");
    let mut call = world.begin(&Asked { authorization: Some(CONSUMER), ..ABOUT_K }).ok().unwrap();
    assert_ne!(format!("{:?}", world.service), fresh, "an id of a request was used");
    let begun = format!("{call:?}");
    world.carry_out(&mut call);
    let decided = format!("{call:?}");
    assert_ne!(decided, begun);
}

/// Neither in the settings nor in a call that will send it.
#[test]
fn no_secret_is_printed() {
    let mut world = World::of(&DEPLOYMENT);
    let body = br#"{"captcha":"the-response"}"#;
    let visit = Asked { url: "/v1/session", address: Some("192.0.2.1"), body, ..Asked::default() };
    let mut call = world.begin(&visit).ok().unwrap();
    world.carry_out(&mut call);
    let LastStep::Verify(verification) = call.last(world.now()) else { panic!("it is not to be verified") };
    assert_eq!(verification.secret, "the-secret-of-the-captcha");
    assert_eq!(format!("{verification:?}"), "Verification { .. }");
    let printed = format!("{:?} {call:?}", world.service);
    assert!(printed.contains("Verification { .. }") && !printed.contains(&verification.secret), "{printed}");
}
