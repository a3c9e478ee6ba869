//! Why the relay doesn't start, or stops.

/// Why the relay didn't start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A model's files can't be used.
    #[error("model {model}: {what}")]
    Model {
        /// Its name.
        model: String,
        /// What is wrong.
        what: String,
    },
    /// An address can't be bound.
    #[error("can't listen on {address} for {purpose}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// What for.
        purpose: &'static str,
        /// Why.
        error: std::io::Error,
    },
    /// The gRPC server failed.
    #[error("the side-stream's server failed: {0}")]
    Serve(#[from] tonic::transport::Error),
}
