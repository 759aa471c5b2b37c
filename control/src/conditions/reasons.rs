//! Types and reasons of conditions, as `control/README.md` lists them.

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $text;)*
        /// All of them.
        pub const ALL: &[&str] = &[$($text),*];
    };
}

/// Types.
pub mod types {
    names! {
        /// Requests can go there.
        READY = "Ready";
        /// The tokenizer was read.
        TOKENIZER_LOADED = "TokenizerLoaded";
        /// The filter's prompt text is the engine's.
        PROMPT_FIDELITY = "PromptFidelity";
        /// The workers' KV events are followed.
        EVENTS_HEALTHY = "EventsHealthy";
        /// The Secret is there and has what is needed.
        CREDENTIALS_RESOLVED = "CredentialsResolved";
        /// The grid is the one that was asked for.
        PREFIX_INDEX_WITHIN_BUDGET = "PrefixIndexWithinBudget";
        /// The connected filters hold the newest snapshot.
        FILTERS_CURRENT = "FiltersCurrent";
        /// The policy is valid.
        ACCEPTED = "Accepted";
        /// Filters were told the policy's rules.
        IN_FORCE = "InForce";
    }
}

names! {
    /// The resource has problems.
    INVALID = "Invalid";
    /// The resource itself is right, another one keeps it out of force.
    HELD = "Held";
    /// It refers to what is not there, and is used without that.
    REFERENCE_MISSING = "ReferenceMissing";
    /// Nothing refers to it.
    NOT_USED = "NotUsed";
    /// There is no worker at all.
    NO_WORKERS = "NoWorkers";
    /// None of the workers is ready.
    NO_WORKER_READY = "NoWorkerReady";
    /// Some workers are ready.
    SOME_WORKERS_READY = "SomeWorkersReady";
    /// All workers are ready.
    ALL_WORKERS_READY = "AllWorkersReady";
    /// The tokenizer was read.
    LOADED = "Loaded";
    /// The tokenizer cannot be used.
    TOKENIZER_UNUSABLE = "TokenizerUnusable";
    /// The text was found equal.
    TEXT_EQUAL = "TextEqual";
    /// The text was found different.
    TEXT_DIFFERS = "TextDiffers";
    /// There is no answer yet.
    NOT_CHECKED = "NotChecked";
    /// The worker set asks for no events.
    NOT_CONFIGURED = "NotConfigured";
    /// All that the engines told is taken in.
    CURRENT = "Current";
    /// Some events are not taken in yet.
    CATCHING_UP = "CatchingUp";
    /// A stream of events is not connected.
    NOT_CONNECTED = "NotConnected";
    /// The Secret is there and has what is needed.
    RESOLVED = "Resolved";
    /// No credentials are asked for.
    NOT_NEEDED = "NotNeeded";
    /// The Secret is not there, or lacks a key.
    CREDENTIALS_MISSING = "CredentialsMissing";
    /// Filters cannot use the provider.
    NOT_USABLE = "NotUsable";
    /// Rules may send requests there.
    OFFERED = "Offered";
    /// The grid is the one that was asked for.
    WITHIN_BUDGET = "WithinBudget";
    /// The grid is coarser than was asked for.
    GRID_COARSENED = "GridCoarsened";
    /// No filter is connected.
    NO_FILTER_CONNECTED = "NoFilterConnected";
    /// A filter refused what it was sent.
    SNAPSHOT_REFUSED = "SnapshotRefused";
    /// The resource is valid.
    VALID = "Valid";
    /// The resource is valid, and most likely something in it is not meant.
    VALID_WITH_WARNINGS = "ValidWithWarnings";
    /// Its rules are in force.
    RULES_IN_FORCE = "RulesInForce";
    /// An earlier version of it is in force.
    LAST_GOOD_IN_FORCE = "LastGoodInForce";
    /// There is no gateway backend for it.
    NO_GATEWAY_BACKEND = "NoGatewayBackend";
}
