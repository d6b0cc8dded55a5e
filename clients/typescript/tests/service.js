// A real service on its own ports.

import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { tmpdir } from "node:os";
import path from "node:path";

import grpc from "@grpc/grpc-js";
import { DetectionServiceClient } from "../dist/esm/gen/unstuck/v1/detection_service.js";
import { SessionServiceClient } from "../dist/esm/gen/unstuck/v1/session_service.js";

export const ROOT = path.resolve(import.meta.dirname, "../../..");
export const PACKAGE = path.resolve(import.meta.dirname, "..");
export const BIN = path.resolve(ROOT, process.env.UNSTUCK_BIN ?? "target/debug/unstuck");

export class Service {
  #dir;
  #child;
  #toml;

  static async start(toml = "") {
    const service = new Service();
    service.#dir = await mkdtemp(path.join(tmpdir(), "unstuck-client-"));
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
    this.ended = new Promise((resolve) => this.#child.once("exit", resolve));
    this.target = undefined;
    for await (const line of createInterface({ input: this.#child.stdout })) {
      const [, kind, address] = line.match(/^unstuck: (gRPC|HTTP) on (\S+)/) ?? [];
      if (kind === "gRPC") this.target = address;
      if (kind === "HTTP") this.http = address;
      if (line.startsWith("unstuck: s")) break;
    }
    if (!this.target) throw new Error(`the service did not start: ${stderr}`);
  }

  /** `SIGKILL`, `SIGSTOP`, `SIGCONT`, `SIGTERM`. */
  signal(name) {
    this.#child.kill(name);
  }

  async kill() {
    this.signal("SIGKILL");
    await this.ended;
  }

  /** Starts it again on the same ports, with the same store. */
  async restart() {
    await this.#run(this.target, this.http);
  }

  async close() {
    this.signal("SIGCONT");
    this.signal("SIGTERM");
    await this.ended;
    await rm(this.#dir, { recursive: true, force: true });
  }

  /** One call of a method of SessionService or DetectionService, without this package's client. */
  async ask(method, request) {
    const Client = method in SessionServiceClient.prototype ? SessionServiceClient : DetectionServiceClient;
    const client = new Client(this.target, grpc.credentials.createInsecure());
    try {
      return await new Promise((resolve, reject) => client[method](request, (error, answer) => (error ? reject(error) : resolve(answer))));
    } finally {
      client.close();
    }
  }

  async session(sessionId) {
    return (await this.ask("getSession", { sessionId })).session;
  }
}

/** Waits for a condition; fails after ten seconds. */
export async function until(condition, what) {
  const end = Date.now() + 10_000;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`never: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
