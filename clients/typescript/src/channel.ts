import { readFileSync } from "node:fs";
import * as grpc from "@grpc/grpc-js";

/** Certificates for TLS, as PEM texts. Else the files `UNSTUCK_CA`, `UNSTUCK_CERT` and `UNSTUCK_KEY`, else the roots of Node.js. */
export interface TlsOptions {
  /** The certificate authority. */
  ca?: string | Buffer;
  /** The client's certificate chain, with `key`. */
  cert?: string | Buffer;
  key?: string | Buffer;
  /** The name in the service's certificate, if it is not the target's. */
  serverName?: string;
}

/** Lets the process end although a stream is open: a socket of this channel never keeps it alive. */
class DetachedCredentials extends grpc.ChannelCredentials {
  constructor(readonly inner: grpc.ChannelCredentials) {
    super();
  }
  override _isSecure() {
    return this.inner._isSecure();
  }
  override _equals(other: grpc.ChannelCredentials) {
    return other instanceof DetachedCredentials && this.inner._equals(other.inner);
  }
  override _createSecureConnector(...args: Parameters<grpc.ChannelCredentials["_createSecureConnector"]>) {
    const connector = this.inner._createSecureConnector(...args);
    const connect = connector.connect.bind(connector);
    connector.connect = async (socket) => {
      const result = await connect(socket);
      for (const one of [socket, result.socket]) {
        one.unref();
        one.ref = () => one;
      }
      return result;
    };
    return connector;
  }
}

/** What was given, else what is in the file that the variable names. */
function pemOf(given: string | Buffer | undefined, variable: string): Buffer | null {
  if (given !== undefined) return Buffer.from(given);
  const text = textOf(process.env[variable]);
  return text === "" ? null : Buffer.from(text);
}

/** The text of a file; empty if there is none: no method throws. */
function textOf(file: string | undefined): string {
  if (!file) return "";
  try {
    return readFileSync(file, "utf8");
  } catch {
    return "";
  }
}

/** The address and the credentials of a target such as `127.0.0.1:50551`, `https://host:443` or `unix:/path`. */
export function channelOf(target: string, tls: TlsOptions | undefined) {
  const secure = tls !== undefined || target.startsWith("https://");
  const ssl = () => grpc.credentials.createSsl(pemOf(tls?.ca, "UNSTUCK_CA"), pemOf(tls?.key, "UNSTUCK_KEY"), pemOf(tls?.cert, "UNSTUCK_CERT"));
  const options: grpc.ChannelOptions = {
    // The library's back-off between connections has jitter.
    "grpc.initial_reconnect_backoff_ms": 50,
    "grpc.min_reconnect_backoff_ms": 50,
    "grpc.max_reconnect_backoff_ms": 5_000,
    // A server that is gone without closing its connections is noticed.
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.use_local_subchannel_pool": 1,
    ...(tls?.serverName ? { "grpc.ssl_target_name_override": tls.serverName } : {}),
  };
  const credentials = new DetachedCredentials(secure ? ssl() : grpc.credentials.createInsecure());
  return { address: target.replace(/^https?:\/\//, ""), credentials, options };
}

/** The token: given, of `UNSTUCK_TOKEN`, or in the file that `UNSTUCK_TOKEN_FILE` names. */
export function tokenOf(given: string | undefined): string {
  const { UNSTUCK_TOKEN, UNSTUCK_TOKEN_FILE } = process.env;
  return given ?? (UNSTUCK_TOKEN || textOf(UNSTUCK_TOKEN_FILE).trim());
}
