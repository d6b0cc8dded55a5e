// A real service on its own ports, and a gRPC client that shares no code with it.

import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { tmpdir } from "node:os";
import path from "node:path";

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const ROOT = path.resolve(import.meta.dirname, "../..");
export const BIN = path.resolve(ROOT, process.env.UNSTUCK_BIN ?? "target/debug/unstuck");

const definition = loader.loadSync(
  ["unstuck/v1/detection_service.proto", "unstuck/v1/session_service.proto"],
  { includeDirs: [path.join(ROOT, "proto")], keepCase: true, enums: String, defaults: true },
);
const { unstuck } = grpc.loadPackageDefinition(definition);

export class Service {
  /** Sent with every call, unless empty. */
  token = "";
  #dir;
  #child;
  #toml;
  #tls;

  /** `tls`: the CA certificate, and the name in the service's certificate. */
  static async start(toml = "", tls = null) {
    const service = new Service();
    service.#tls = tls;
    service.#dir = await mkdtemp(path.join(tmpdir(), "unstuck-console-"));
    service.#toml = toml;
    await service.#run("127.0.0.1:0", "127.0.0.1:0");
    return service;
  }

  async #run(grpcAddress, httpAddress) {
    const config = path.join(this.#dir, "unstuck.toml");
    await writeFile(config, `[server]\ngrpc = "${grpcAddress}"\nhttp = "${httpAddress}"\n${this.#toml}`);
    this.#child = spawn(BIN, ["serve", "--config", config], { cwd: this.#dir, stdio: ["ignore", "pipe", "pipe"], env: { PATH: process.env.PATH } });
    let stderr = "";
    this.#child.stderr.on("data", (text) => { stderr += text; });
    const lines = createInterface({ input: this.#child.stdout });
    for await (const line of lines) {
      const [, kind, address] = line.match(/^unstuck: (gRPC|HTTP) on (\S+)/) ?? [];
      if (kind === "gRPC") this.grpc = address;
      if (kind === "HTTP") this.http = address;
      if (line.startsWith("unstuck: s")) break;
    }
    if (!this.http) throw new Error(`the service did not start: ${stderr}`);
    this.url = `${this.#tls ? "https" : "http"}://${this.http}`;
    const credentials = this.#tls ? grpc.credentials.createSsl(this.#tls.ca) : grpc.credentials.createInsecure();
    const options = this.#tls ? { "grpc.ssl_target_name_override": this.#tls.name } : {};
    this.detection?.close();
    this.sessions?.close();
    this.detection = new unstuck.v1.DetectionService(this.grpc, credentials, options);
    this.sessions = new unstuck.v1.SessionService(this.grpc, credentials, options);
  }

  async stop() {
    const ended = new Promise((resolve) => this.#child.once("exit", resolve));
    this.#child.kill("SIGTERM");
    await ended;
  }

  /** Starts it again on the same ports, with the same store. */
  async restart() {
    await this.#run(this.grpc, this.http);
  }

  async close() {
    this.detection.close();
    this.sessions.close();
    await this.stop();
    await rm(this.#dir, { recursive: true });
  }

  /** One unary call. */
  ask(method, request, headers = {}) {
    const client = method in this.detection ? this.detection : this.sessions;
    const metadata = new grpc.Metadata();
    if (this.token) metadata.set("authorization", `Bearer ${this.token}`);
    for (const [name, value] of Object.entries(headers)) metadata.set(name, value);
    return new Promise((resolve, reject) => {
      client[method](request, metadata, (error, answer) => (error ? reject(error) : resolve(answer)));
    });
  }

  async record(session, ...events) {
    const results = [];
    for (const event of events) results.push((await this.ask("RecordEvent", { event: { session_id: session, ...event } })).result);
    return results;
  }

  /** A bidirectional stream of events, as a broker uses it. */
  stream() {
    const stream = this.detection.StreamEvents();
    const arrived = [];
    const waiting = [];
    stream.on("data", (response) => (waiting.length ? waiting.shift()(response) : arrived.push(response)));
    stream.on("error", () => {});
    let sequence = 0;
    return {
      send(session, ...events) {
        sequence += 1;
        stream.write({ sequence, events: events.map((event) => ({ session_id: session, ...event })) });
        return this.next();
      },
      next: () => (arrived.length ? Promise.resolve(arrived.shift()) : new Promise((resolve) => waiting.push(resolve))),
      end: () => stream.cancel(),
    };
  }
}

// Events

export function call(tool, target, more = {}) {
  return {
    tool_call: { tool, target, args_json: JSON.stringify({ target }), outcome: "OUTCOME_OK", result: `of ${target}`, ...more },
    usage: { input_tokens: 4200, output_tokens: 180, cost_usd: 0.0153 },
  };
}

export const read = (file) => call("read_file", file);
export const times = (number, ...events) => Array.from({ length: number }, () => events).flat();
