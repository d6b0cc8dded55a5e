//! One binary for all tests from outside: a file per behaviour.

mod replay;
