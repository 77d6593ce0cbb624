//! The hunt in the state machine alone: replicas of one log, without a network.
