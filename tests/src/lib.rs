//! End to end tests
