//! A program without std, with its own panic handler, that decides. scripts/check links it for three targets, which
//! fails if the crate brings std, or a panic handler of its own.
#![no_std]
#![no_main]

use core::hint::{black_box, spin_loop};
use core::panic::PanicInfo;
use core::time::Duration;

use tollgate::limit::{Config, Limit, Moment, RollingWindow};

/// Where the program starts, under the name that the linker expects: it would drop any other function.
#[cfg_attr(unix, unsafe(export_name = "main"))]
#[cfg_attr(not(unix), unsafe(export_name = "_start"))]
extern "C" fn main() -> i32 {
    // Unknown to the compiler, so that the arithmetic is linked.
    let (rate, now) = black_box((100, 1_800_000_000_000));
    let Ok(limit) = Limit::new(&Config::token_bucket(rate, Duration::from_mins(1))) else { return 1 };
    let mut alice = limit.new_state(now, 0);
    let is_wrong = !limit.consume(&mut alice, now, 100).is_allow() || limit.try_consume(&mut alice, now, 1);
    let Ok(window) = RollingWindow::new(rate, Duration::from_mins(1)) else { return 1 };
    let Some(mut bob) = window.state_in(now, [Moment::default(); 61]) else { return 1 };
    i32::from(is_wrong || !window.try_consume(&mut bob, now, 100) || window.try_consume(&mut bob, now, 1))
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        spin_loop();
    }
}

// What the start of a program on Unix is linked with.
#[cfg(unix)]
#[link(name = "c")]
unsafe extern "C" {}
