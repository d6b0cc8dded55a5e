/**
 * Tells a service about an agent's calls, and the agent what the service says.
 * @module
 */
export { type TlsOptions } from "./channel.js";
export { type Author, type CallOptions, Client, type ClientOptions, type Session, type SessionOptions, type Stats, type Usage } from "./client.js";
export { Guard, type GuardedOptions, type GuardOptions } from "./guard.js";
export { type StreamCounts } from "./stream.js";
export { callKey } from "./text.js";
export { type Action, ACTIONS, correctionText, type Member, Refused, Stopped, Verdict } from "./verdict.js";
