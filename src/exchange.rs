//! The text that a module of the npm package exchanges with its JavaScript: those in `lint`, `answers` and `js::kinds`.
//!
//! Only numbers cross. JavaScript calls [`text`] with a question's length in bytes, writes the question at the address it returns, calls an
//! export that replaces the question by its answer and returns the answer's length, and reads it from where [`text`] says.
#![expect(unsafe_code, reason = "an export keeps its name; nothing else here is unsafe")]

use std::sync::{Mutex, PoisonError};

/// The only text: first the question, then the answer.
static TEXT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// The address of the text, which now has `len` bytes: the previous ones, truncated or followed by zeros.
#[unsafe(no_mangle)]
pub extern "C" fn text(len: usize) -> *mut u8 {
    let mut text = TEXT.lock().unwrap_or_else(PoisonError::into_inner);
    text.resize(len, 0);
    text.as_mut_ptr()
}

/// Replaces the question by its answer, and returns the answer's length.
pub(crate) fn replace(answer: impl FnOnce(&str) -> String) -> usize {
    let mut text = TEXT.lock().unwrap_or_else(PoisonError::into_inner);
    *text = answer(&String::from_utf8_lossy(&text)).into_bytes();
    text.len()
}

/// The answer to `question` from an export, and the length that the export returned.
#[cfg(test)]
pub(crate) fn exchanged(question: &str, export: impl FnOnce() -> usize) -> (String, usize) {
    text(0);
    text(question.len());
    TEXT.lock().unwrap_or_else(PoisonError::into_inner).copy_from_slice(question.as_bytes());
    let len = export();
    let answer = TEXT.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (String::from_utf8(answer).unwrap(), len)
}
