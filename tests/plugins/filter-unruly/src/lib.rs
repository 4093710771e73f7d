//! A filter that misbehaves on request, for tests
