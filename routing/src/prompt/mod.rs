//! Request body → prompt text → token ids → fingerprints.
