import * as grpc from "@grpc/grpc-js";
import { DetectionServiceClient, type EventResult, type StreamEventsRequest, type StreamEventsResponse } from "./gen/unstuck/v1/detection_service.js";
import type { Event } from "./gen/unstuck/v1/event.js";

// Requests that wait for their answers. What comes meanwhile is the next batch.
const REQUESTS_MAX = 8;
// Of a batch, well below the service's 1 MiB a message.
const BATCH_CHARS_MAX = 256 * 1024;
const BACKOFF_MIN_MS = 50;
const BACKOFF_MAX_MS = 5_000;

/** An event that is not answered yet. */
export interface Pending {
  event: Event;
  /** When it was added, in milliseconds. */
  since: number;
  /** An upper bound of its texts. */
  chars: number;
  /** Called once: with the result, or with null if the event is given up. */
  done: (result: EventResult | null) => void;
}

/** What a stream tells its owner. */
export interface StreamListener {
  /** Something that answers no event. */
  push: (result: EventResult) => void;
  /** The stream is open, for the first time or again. */
  open: () => void;
}

/** The numbers of a stream since its start. */
export interface StreamCounts {
  sent: number;
  resent: number;
  answered: number;
  dropped: number;
  reconnects: number;
}

/**
 * The stream of events of a process. It is opened with the first event, and again after a
 * failure; what was not answered is then sent again, in order.
 */
export class EventStream {
  readonly counts: StreamCounts = { sent: 0, resent: 0, answered: 0, dropped: 0, reconnects: 0 };
  /** The latest attempt to connect has failed. */
  down = false;
  #client: DetectionServiceClient;
  #metadata: grpc.Metadata;
  #maxBatch: number;
  #buffer: number;
  #listener: StreamListener;
  /** Oldest first: a Set keeps the order. */
  #unanswered = new Set<Pending>();
  #queue: Pending[] = [];
  #requests = new Map<number, Pending[]>();
  #known = new WeakSet<Pending>();
  #call: grpc.ClientDuplexStream<StreamEventsRequest, StreamEventsResponse> | null = null;
  #sequence = 0;
  #backoff = BACKOFF_MIN_MS;
  #waiting = false;
  #scheduled = false;
  #closed = false;
  #idle: (() => void)[] = [];

  constructor(client: DetectionServiceClient, metadata: grpc.Metadata, maxBatch: number, buffer: number, listener: StreamListener) {
    this.#client = client;
    this.#metadata = metadata;
    this.#maxBatch = maxBatch;
    this.#buffer = buffer;
    this.#listener = listener;
  }

  /** How many events wait for their answers. */
  get waiting(): number {
    return this.#unanswered.size;
  }

  /** Whether the oldest event has waited longer than this for its answer. */
  isBehind(ms: number): boolean {
    const [oldest] = this.#unanswered;
    return oldest !== undefined && Date.now() - oldest.since > ms;
  }

  /** Whether an event of this session waits for its answer. */
  isWaitingFor(session: string): boolean {
    for (const { event } of this.#unanswered) if (event.sessionId === session) return true;
    return false;
  }

  add(pending: Pending): void {
    if (this.#closed) return pending.done(null);
    if (this.#unanswered.size >= this.#buffer) {
      const [oldest] = this.#unanswered;
      this.#unanswered.delete(oldest);
      this.counts.dropped += 1;
      oldest.done(null);
    }
    this.#unanswered.add(pending);
    this.#queue.push(pending);
    if (this.#scheduled) return;
    // Calls of the same moment are one batch.
    this.#scheduled = true;
    queueMicrotask(() => {
      this.#scheduled = false;
      this.#flush();
    });
  }

  #flush(): void {
    if (this.#closed || this.#queue.length === 0) return;
    if (!this.#call) return this.#connect();
    while (this.#queue.length > 0 && this.#requests.size < REQUESTS_MAX) {
      const batch: Pending[] = [];
      let chars = 0;
      let taken = 0;
      for (const pending of this.#queue) {
        if (batch.length === this.#maxBatch || (batch.length > 0 && chars + pending.chars > BATCH_CHARS_MAX)) break;
        taken += 1;
        // What was dropped while it waited is not sent.
        if (!this.#unanswered.has(pending)) continue;
        batch.push(pending);
        chars += pending.chars;
      }
      this.#queue.splice(0, taken);
      if (batch.length === 0) continue;
      this.#sequence += 1;
      this.#requests.set(this.#sequence, batch);
      for (const pending of batch) {
        if (this.#known.has(pending)) this.counts.resent += 1;
        this.#known.add(pending);
      }
      this.counts.sent += batch.length;
      this.#call.write({ sequence: this.#sequence, events: batch.map(({ event }) => event) });
    }
  }

  /** Opens the stream once the channel is ready. No call waits meanwhile: it would keep the process alive. */
  #connect(): void {
    if (this.#waiting || this.#call || this.#closed) return;
    this.#waiting = true;
    const channel = this.#client.getChannel();
    const step = () => {
      if (this.#closed) return;
      const state = channel.getConnectivityState(true);
      if (state === grpc.connectivityState.READY) {
        this.#waiting = false;
        return this.#open();
      }
      if (state === grpc.connectivityState.TRANSIENT_FAILURE) this.down = true;
      channel.watchConnectivityState(state, Infinity, step);
    };
    step();
  }

  #open(): void {
    const call = this.#client.streamEvents(this.#metadata);
    this.#call = call;
    this.down = false;
    this.#sequence = 0;
    call.on("data", (response: StreamEventsResponse) => this.#receive(response));
    // "error" comes for every end that is not OK, "end" for the others.
    call.on("error", (error: grpc.ServiceError) => this.#ended(call, error.code));
    call.on("end", () => this.#ended(call, grpc.status.OK));
    this.#listener.open();
    this.#flush();
  }

  #receive(response: StreamEventsResponse): void {
    this.#backoff = BACKOFF_MIN_MS;
    if (response.sequence === 0) {
      for (const result of response.results) this.#listener.push(result);
      return;
    }
    const batch = this.#requests.get(response.sequence);
    this.#requests.delete(response.sequence);
    batch?.forEach((pending, index) => {
      // One that was dropped has been given up already.
      if (!this.#unanswered.delete(pending)) return;
      this.counts.answered += 1;
      pending.done(response.results[index] ?? null);
    });
    if (this.#unanswered.size === 0) for (const resolve of this.#idle.splice(0)) resolve();
    this.#flush();
  }

  #ended(call: grpc.ClientDuplexStream<StreamEventsRequest, StreamEventsResponse>, code: grpc.status): void {
    if (this.#call !== call) return;
    this.#call = null;
    if (this.#closed) return;
    this.down = true;
    this.counts.reconnects += 1;
    // The service cannot read what was sent: to send it again would never end.
    if (code === grpc.status.OUT_OF_RANGE || code === grpc.status.INVALID_ARGUMENT) {
      for (const pending of [...this.#requests.values()].flat()) {
        if (!this.#unanswered.delete(pending)) continue;
        this.counts.dropped += 1;
        pending.done(null);
      }
    }
    this.#requests.clear();
    this.#queue = [...this.#unanswered];
    const wait = this.#backoff * (0.5 + Math.random() / 2);
    this.#backoff = Math.min(this.#backoff * 2, BACKOFF_MAX_MS);
    setTimeout(() => this.#connect(), wait).unref();
  }

  /** Resolves when every event is answered or given up. */
  idle(): Promise<void> {
    return this.#unanswered.size === 0 ? Promise.resolve() : new Promise((resolve) => this.#idle.push(resolve));
  }

  close(): void {
    this.#closed = true;
    this.#call?.cancel();
    this.#call = null;
    for (const pending of this.#unanswered) pending.done(null);
    this.counts.dropped += this.#unanswered.size;
    this.#unanswered.clear();
    this.#queue = [];
    for (const resolve of this.#idle.splice(0)) resolve();
  }
}
