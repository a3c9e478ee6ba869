//! Responses that engines keep (`previous_response_id`, `GET /v1/responses/ID`): which replica holds
//! which.
//!
//! vLLM 0.32 and SGLang 0.5.23 keep them in the memory of the process that answered
//! (`entrypoints/openai/responses/serving.py`, `entrypoints/openai/serving_responses.py`), so a request
//! that refers to one has to go there. The id is in the answer's body alone: an [`IdScan`] finds it as
//! the answer passes. What is known lies in a fixed number of [`Bucket`]s under fixed keys, which the
//! workers of an Envoy share; where one is full, what was not used for longest leaves.
//!
//! Neither of them keeps a `conversation` (the field is not read), nor has `DELETE`.

mod bucket;
mod id_scan;

pub use bucket::{BUCKETS, Bucket, Name, TOUCH_S};
pub use id_scan::IdScan;
