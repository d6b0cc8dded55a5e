import { randomUUID } from "node:crypto";
import * as grpc from "@grpc/grpc-js";
import { channelOf, type TlsOptions, tokenOf } from "./channel.js";
import { CheckCallRequest, type CheckCallResponse, DetectionServiceClient, type EventResult, type StreamDeltasRequest, type StreamDeltasResponse } from "./gen/unstuck/v1/detection_service.js";
import { Channel, Delta, Event, MarkerKind, Outcome, Role } from "./gen/unstuck/v1/event.js";
import { OpenSessionRequest, SessionServiceClient } from "./gen/unstuck/v1/session_service.js";
import { guardedFunction, type GuardedOptions } from "./guard.js";
import { EventStream, type StreamCounts } from "./stream.js";
import { asText, bounded, boundedId, callKey, wireArguments } from "./text.js";
import { stronger, Verdict, WireAction } from "./verdict.js";

// After so many missed deadlines in a row nothing waits for a time.
const MISSES_MAX = 3;
const PAUSE_MS = 5_000;
// Sessions whose latest answers are kept; the one that was used longest ago goes first.
const SESSIONS_MAX = 4_096;
// Pieces of text that are not sent yet; deltas are not sent again.
const DELTAS_MAX = 1_024;

/** How a client connects and how long it waits. */
export interface ClientOptions {
  /** `host:port`, `https://host:port` or `unix:/path`. Else `UNSTUCK_SERVER`, else `127.0.0.1:50551`. */
  target?: string;
  /** The bearer token. Else `UNSTUCK_TOKEN`, else the file `UNSTUCK_TOKEN_FILE`. */
  token?: string;
  /** Certificates; given, the connection uses TLS. */
  tls?: TlsOptions;
  /** The longest wait for an answer in milliseconds. 250 by default. */
  deadline?: number;
  /** Events in one message at most. 256 by default, which is also the most. */
  maxBatch?: number;
  /** Unanswered events that are kept; beyond it the oldest is dropped. 4096 by default. */
  buffer?: number;
}

/** What an event cost. */
export interface Usage {
  inputTokens?: number;
  outputTokens?: number;
  costUsd?: number;
  /** Of the input tokens, those read from the model's cache. */
  cachedInputTokens?: number;
}

/** How a call ended, and what is known of it. */
export interface CallOptions {
  /** The result; a value that is no text is sent as JSON. Absent: unknown. */
  result?: unknown;
  /** The error: a call with one has failed. */
  error?: unknown;
  /** Else ERROR with `error`, OK with `result`, unknown without both. */
  outcome?: "OK" | "ERROR" | "BLOCKED";
  /** The sub-agent. Absent: the main agent. */
  agent?: string;
  /** The calls of one model response share it. */
  round?: string;
  /** The call's own id: an event with a known id counts once. Else one is made. */
  callId?: string;
  usage?: Usage;
  /** A hash of the environment after the call. */
  stateHash?: string;
  /** A hash of the file after a write, or as read. */
  contentHash?: string;
}

/** The author of a message. `user` resets all counts, `system` is the harness. */
export type Author = "agent" | "user" | "system";

/** Numbers since the start of a client. */
export interface Stats extends StreamCounts {
  /** Events that wait for their answers. */
  waiting: number;
  /** Events that the service did not accept. */
  rejected: number;
  /** Waits that ended without an answer. */
  missed: number;
  /** Nothing waits now, after missed deadlines. */
  paused: boolean;
  /** What a listener of `onPush` threw. */
  listenerErrors: number;
}

/** What is known of a session or sub-agent without asking. */
interface Known {
  /** A verdict that nobody was there to take. */
  late: Verdict | null;
  /** An event was dropped: what its answer asked for is in `standing`. */
  gap: boolean;
  blocked: Set<string>;
  /** No action in force refuses a call. */
  clear: boolean;
  /** The verdict that has ended the session or sub-agent. */
  terminated: Verdict | null;
}

/** The profile and the labels of a session. */
export interface SessionOptions {
  profile?: string;
  labels?: Record<string, string>;
}

/** A session that ends when it is disposed of. */
export interface Session extends AsyncDisposable {
  readonly id: string;
  /** Ends the session. */
  end(): Promise<void>;
}

/**
 * The connection of a process to the service. No method throws or rejects, and none takes longer
 * than the deadline: without an answer an agent goes on as if there were no guard.
 */
export class Client {
  readonly deadline: number;
  #detection: DetectionServiceClient;
  #sessions: SessionServiceClient;
  #metadata = new grpc.Metadata();
  #stream: EventStream;
  #known = new Map<string, Known>();
  /** The sessions that were opened here and have not ended. */
  #opened = new Map<string, SessionOptions>();
  /** Those of them that the service was not there to open. */
  #unopened = new Set<string>();
  #listeners = new Set<(verdict: Verdict) => void>();
  #misses = 0;
  #pausedUntil = 0;
  #missed = 0;
  #rejected = 0;
  #listenerErrors = 0;
  #closed = false;
  #deltas: grpc.ClientDuplexStream<StreamDeltasRequest, StreamDeltasResponse> | null = null;
  #deltasWaiting = 0;
  #ends = new Map<string, (verdict: Verdict | null) => void>();
  /** Makes event ids short and unique. */
  #prefix = randomUUID().slice(0, 18);
  #number = 0;

  constructor(options: ClientOptions = {}) {
    this.deadline = options.deadline ?? 250;
    const target = options.target ?? process.env.UNSTUCK_SERVER ?? "127.0.0.1:50551";
    const channel = channelOf(target, options.tls);
    const token = tokenOf(options.token);
    if (token) this.#metadata.set("authorization", `Bearer ${token}`);
    this.#detection = new DetectionServiceClient(channel.address, channel.credentials, channel.options);
    const shared = { ...channel.options, channelOverride: this.#detection.getChannel() };
    this.#sessions = new SessionServiceClient(channel.address, channel.credentials, shared);
    const maxBatch = Math.min(Math.max(options.maxBatch ?? 256, 1), 256);
    this.#stream = new EventStream(this.#detection, this.#metadata, maxBatch, Math.max(options.buffer ?? 4_096, 1), {
      push: (result) => this.#push(result),
      open: () => {
        for (const id of this.#unopened) void this.#open(id);
      },
    });
  }

  /** Sends a finished call. Resolves with what to do, or with null. */
  record(session: string, tool: string, args: unknown, options: CallOptions = {}): Promise<Verdict | null> {
    const error = options.error instanceof Error ? `${options.error.name}: ${options.error.message}` : asText(options.error);
    const result = asText(options.result);
    const outcome = options.outcome ?? (error !== undefined ? "ERROR" : result !== undefined ? "OK" : undefined);
    const value = {
      tool: String(tool), operation: 0, target: "", arguments: wireArguments(args),
      outcome: outcome ? Outcome[outcome] : Outcome.UNSPECIFIED,
      error: bounded(error ?? ""), result: result === undefined ? undefined : bounded(result),
      resultHash: "", contentHash: options.contentHash ?? "",
    };
    const chars = (value.arguments?.value.length ?? 0) + value.error.length + (value.result?.length ?? 0);
    return this.#send(session, options, { $case: "toolCall", value }, chars);
  }

  /** Sends a finished message. */
  turn(session: string, role: Author, text: string, options: { agent?: string; turnId?: string; usage?: Usage } = {}): Promise<Verdict | null> {
    const value = { turnId: options.turnId ?? "", role: { agent: Role.AGENT, user: Role.USER, system: Role.SYSTEM }[role] ?? Role.UNSPECIFIED, text: bounded(String(text)) };
    return this.#send(session, options, { $case: "turn", value }, value.text.length);
  }

  /** Records that the context was compacted: the model may read again what it had read. */
  compacted(session: string, options: { agent?: string; contextTokens?: number } = {}): Promise<Verdict | null> {
    const value = { kind: MarkerKind.COMPACTION, contextTokens: whole(options.contextTokens) };
    return this.#send(session, options, { $case: "marker", value }, 0);
  }

  /**
   * Whether a call would be refused now. Null: it may be made. Asks the service only if it has said
   * that some action is in force, or has said nothing yet.
   */
  async check(session: string, tool: string, args: unknown, options: { agent?: string } = {}): Promise<Verdict | null> {
    const agent = options.agent ?? "";
    const terminated = this.stopped(session, agent);
    if (terminated) return terminated;
    if (this.#known.get(`${session}\0${agent}`)?.clear) return null;
    if (this.#waits()) {
      const request = CheckCallRequest.fromPartial({ sessionId: String(session), agentId: agent, tool: String(tool), arguments: wireArguments(args) });
      const answer = await this.#ask<CheckCallResponse>((done) => this.#detection.checkCall(request, this.#metadata, this.#callOptions(), done));
      if (answer) return this.#checked(answer, session, agent);
    }
    // Without an answer the keys of the last one decide.
    const known = this.#known.get(`${session}\0${agent}`);
    if (known?.late?.atLeast("ESCALATE")) return known.late;
    return known?.blocked.size && known.blocked.has(callKey(tool, args)) ? new Verdict(WireAction.BLOCK, session, agent) : null;
  }

  /**
   * Sends a piece of a text while the model writes it. Resolves at once, and with `endOfTurn`
   * with what to do.
   */
  delta(session: string, text: string, options: { agent?: string; turnId?: string; reasoning?: boolean; endOfTurn?: boolean } = {}): Promise<Verdict | null> {
    const stream = this.#deltaStream();
    const known = this.#knownOf(String(session), options.agent ?? "");
    if (!stream || this.#deltasWaiting >= DELTAS_MAX) return Promise.resolve(this.#take(known));
    const delta = Delta.fromPartial({
      sessionId: String(session), agentId: options.agent, turnId: options.turnId, text: bounded(String(text)),
      channel: options.reasoning ? Channel.REASONING : Channel.VISIBLE, endOfTurn: options.endOfTurn,
    });
    this.#deltasWaiting += 1;
    stream.write({ deltas: [delta] }, () => (this.#deltasWaiting -= 1));
    if (!options.endOfTurn || !this.#waits()) return Promise.resolve(this.#take(known));
    const key = `${delta.sessionId}\0${delta.agentId}\0${delta.turnId}`;
    return this.#wait((resolve) => this.#ends.set(key, (verdict) => resolve(stronger(verdict, this.#take(known)))), () => this.#ends.delete(key));
  }

  /** A session with a profile and labels, which ends when it is disposed of. Without `await` nothing waits. */
  session(id: string, options: SessionOptions = {}): Session {
    void this.#begin(id, options);
    return this.#session(id);
  }

  #session(id: string): Session {
    const end = async () => {
      const until = Date.now() + this.deadline;
      if (this.#stream.isWaitingFor(id)) await this.flush();
      this.#opened.delete(id);
      this.#unopened.delete(id);
      // An event that comes later would begin the session anew; the service ends it when idle.
      if (this.#waits() && !this.#stream.isWaitingFor(id)) {
        await this.#ask((done) => this.#sessions.endSession({ sessionId: id }, this.#metadata, { deadline: until }, done));
      }
      for (const key of this.#known.keys()) if (key.startsWith(`${id}\0`)) this.#known.delete(key);
    };
    return { id, end, [Symbol.asyncDispose]: end };
  }

  /** Runs a function in a session, which is open before and ends with it. */
  async withSession<T>(id: string, options: SessionOptions, run: (session: Session) => T | Promise<T>): Promise<T> {
    await this.#begin(id, options);
    const session = this.#session(id);
    try {
      return await run(session);
    } finally {
      await session.end();
    }
  }

  /** A tool function that is checked before each call and recorded after it. */
  guarded<Args extends unknown[], Result>(session: string, tool: string, run: (...args: Args) => Result | Promise<Result>, options?: GuardedOptions<Result>): (...args: Args) => Promise<Result> {
    return guardedFunction(this, session, tool, run, options);
  }

  /** Calls a function when an operator terminates a session. Returns a function that ends this. */
  onPush(listener: (verdict: Verdict) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The verdict that has terminated the session or sub-agent, as far as this client knows. */
  stopped(session: string, agent = ""): Verdict | null {
    return this.#known.get(`${session}\0${agent}`)?.terminated ?? this.#known.get(`${session}\0`)?.terminated ?? null;
  }

  /** Numbers since the start. */
  get stats(): Stats {
    return {
      ...this.#stream.counts, waiting: this.#stream.waiting, rejected: this.#rejected, missed: this.#missed,
      paused: Date.now() < this.#pausedUntil, listenerErrors: this.#listenerErrors,
    };
  }

  /** Waits until every event is answered, at most for the deadline. */
  async flush(): Promise<void> {
    if (this.#waits()) await this.#wait((resolve) => void this.#stream.idle().then(() => resolve(null)), () => {});
  }

  /** Sends what waits, for at most the deadline, and closes the connection. */
  async close(): Promise<void> {
    if (this.#closed) return;
    await this.flush();
    this.#closed = true;
    this.#stream.close();
    this.#deltas?.cancel();
    this.#detection.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #send(session: string, options: { agent?: string; round?: string; callId?: string; usage?: Usage; stateHash?: string }, body: Event["body"], chars: number): Promise<Verdict | null> {
    const { usage } = options;
    const event: Event = {
      sessionId: String(session), eventId: boundedId(String(options.callId ?? "")) || `${this.#prefix}-${(this.#number += 1)}`,
      // The time of the event, not of its arrival: it may be sent later.
      time: { seconds: Math.floor(Date.now() / 1_000), nanos: (Date.now() % 1_000) * 1_000_000 },
      agentId: options.agent ?? "", roundId: boundedId(String(options.round ?? "")), stateHash: options.stateHash ?? "", body,
      usage: usage && {
        inputTokens: whole(usage.inputTokens), outputTokens: whole(usage.outputTokens), costUsd: usage.costUsd ?? 0,
        cachedInputTokens: Math.min(whole(usage.cachedInputTokens), whole(usage.inputTokens)),
      },
    };
    const known = this.#knownOf(event.sessionId, event.agentId);
    const waits = this.#waits();
    let take: ((verdict: Verdict | null) => void) | null = null;
    const done = (result: EventResult | null) => {
      const verdict = this.#read(event, known, result);
      if (take) take(stronger(verdict, this.#take(known)));
      else known.late = stronger(verdict, known.late);
    };
    this.#stream.add({ event, chars, done, since: Date.now() });
    if (!waits) return Promise.resolve(this.#take(known));
    return this.#wait((resolve) => (take = resolve), () => (take = null));
  }

  /** What an answer of `check` says of the call, and of what is in force. */
  #checked(answer: CheckCallResponse, session: string, agent: string): Verdict | null {
    const known = this.#knownOf(session, agent);
    known.blocked = new Set(answer.standing?.blocked);
    known.clear = (answer.standing?.action ?? 0) < WireAction.ASK;
    const verdict = answer.action ? new Verdict(answer.action, session, agent, answer.verdict) : null;
    if (verdict?.action === "TERMINATE") known.terminated = verdict;
    return verdict;
  }

  /** What an answer asks for. */
  #read({ sessionId, agentId }: Event, known: Known, result: EventResult | null): Verdict | null {
    if (!result) {
      known.gap = true;
      return null;
    }
    if (result.error) {
      this.#rejected += 1;
      return null;
    }
    known.blocked = new Set(result.standing?.blocked);
    known.clear = (result.standing?.action ?? 0) < WireAction.ASK;
    if (result.stateLost && this.#opened.has(sessionId)) void this.#open(sessionId);
    // Of a dropped event what still holds is performed. A shadow verdict has no action in the result.
    const action = result.action || (known.gap && result.standing?.action) || 0;
    known.gap = false;
    const verdict = action ? new Verdict(action, sessionId, agentId, result.verdict) : null;
    if (verdict?.action === "TERMINATE") known.terminated = verdict;
    // An operator has reset the session.
    else if (result.standing?.action !== WireAction.TERMINATE) known.terminated = null;
    return verdict;
  }

  #push(result: EventResult): void {
    const agent = result.verdict?.agentId ?? "";
    const verdict = new Verdict(result.action || result.verdict?.action || 0, result.sessionId, agent, result.verdict);
    const known = this.#knownOf(verdict.sessionId, agent);
    known.late = stronger(verdict, known.late);
    known.clear = false;
    if (verdict.action === "TERMINATE") known.terminated = verdict;
    for (const listener of this.#listeners) {
      try {
        listener(verdict);
      } catch {
        this.#listenerErrors += 1;
      }
    }
  }

  #take(known: Known): Verdict | null {
    const { late } = known;
    known.late = null;
    return late;
  }

  #knownOf(session: string, agent: string): Known {
    const key = `${session}\0${agent}`;
    const known = this.#known.get(key) ?? { late: null, gap: false, blocked: new Set<string>(), clear: false, terminated: null };
    this.#known.delete(key);
    this.#known.set(key, known);
    if (this.#known.size > SESSIONS_MAX) this.#known.delete(this.#known.keys().next().value as string);
    return known;
  }

  /** Whether an answer is worth a wait: not after missed deadlines, nor while there is no connection. */
  #waits(): boolean {
    if (this.#closed || this.#stream.down || Date.now() < this.#pausedUntil) return false;
    // After missed deadlines, only once the service has answered what it owes.
    return this.#misses < MISSES_MAX || !this.#stream.isBehind(this.deadline);
  }

  /** Waits for at most the deadline. The timer keeps the process alive meanwhile. */
  #wait(begin: (resolve: (verdict: Verdict | null) => void) => void, giveUp: () => void): Promise<Verdict | null> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        giveUp();
        this.#miss();
        resolve(null);
      }, this.deadline);
      begin((verdict) => {
        clearTimeout(timer);
        giveUp();
        this.#misses = 0;
        resolve(verdict);
      });
    });
  }

  #miss(): void {
    this.#missed += 1;
    this.#misses += 1;
    // One more after the pause begins the next.
    if (this.#misses >= MISSES_MAX) this.#pausedUntil = Date.now() + PAUSE_MS;
  }

  #callOptions(): grpc.CallOptions {
    return { deadline: Date.now() + this.deadline };
  }

  /** One call of its own. Null without an answer, for any reason. */
  #ask<Response>(start: (done: (error: grpc.ServiceError | null, response?: Response) => void) => void, failed: (code: grpc.status) => void = () => {}): Promise<Response | null> {
    return new Promise((resolve) => {
      try {
        start((error, response) => {
          if (error) failed(error.code);
          if (error?.code === grpc.status.DEADLINE_EXCEEDED) this.#miss();
          else if (!error) this.#misses = 0;
          resolve(error ? null : (response ?? null));
        });
      } catch {
        resolve(null);
      }
    });
  }

  #begin(id: string, options: SessionOptions): Promise<unknown> {
    this.#opened.set(id, options);
    if (this.#opened.size > SESSIONS_MAX) {
      const [oldest] = this.#opened.keys();
      this.#opened.delete(oldest);
      this.#unopened.delete(oldest);
    }
    if (this.#waits()) return this.#open(id);
    this.#unopened.add(id);
    return Promise.resolve();
  }

  /** Opens a session. If the service is not there, it is opened after the next reconnect. */
  #open(id: string): Promise<unknown> {
    this.#unopened.delete(id);
    const { profile, labels } = this.#opened.get(id) ?? {};
    const request = OpenSessionRequest.fromPartial({ sessionId: id, profile, labels });
    const failed = (code: grpc.status) => {
      // Not what the service refuses: it would be refused again.
      if ((code === grpc.status.UNAVAILABLE || code === grpc.status.DEADLINE_EXCEEDED) && this.#opened.has(id)) this.#unopened.add(id);
    };
    return this.#ask((done) => this.#sessions.openSession(request, this.#metadata, this.#callOptions(), done), failed);
  }

  /** The stream of texts, if there is a connection. */
  #deltaStream() {
    if (this.#closed || this.#deltas) return this.#deltas;
    if (this.#detection.getChannel().getConnectivityState(true) !== grpc.connectivityState.READY) return null;
    const call = this.#detection.streamDeltas(this.#metadata);
    const ended = () => {
      if (this.#deltas === call) this.#deltas = null;
    };
    call.on("error", ended);
    call.on("end", ended);
    call.on("data", (answer: StreamDeltasResponse) => {
      const verdict = answer.action ? new Verdict(answer.action, answer.sessionId, answer.agentId, answer.verdict) : null;
      const end = answer.endOfTurn && this.#ends.get(`${answer.sessionId}\0${answer.agentId}\0${answer.turnId}`);
      if (end) return end(verdict);
      const known = this.#knownOf(answer.sessionId, answer.agentId);
      known.late = stronger(verdict, known.late);
    });
    this.#deltas = call;
    this.#deltasWaiting = 0;
    return call;
  }
}

/** A count of tokens as the service takes it. */
function whole(count: number | undefined): number {
  return Number.isFinite(count) ? Math.min(Math.max(Math.trunc(count as number), 0), 0x7fffffff) : 0;
}
