# syntax=docker/dockerfile:1

# Versions are those of rust-version in Cargo.toml and of the Debian release on
# which distroless/cc-debian12 is built: the C library must be the same. The images are
# named by tag: pin them by the digest that your registry shows before you build a release.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src

# mimalloc and SQLite are C.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# The dependencies alone, with an empty program: this layer is rebuilt only when
# they change.
COPY Cargo.toml Cargo.lock ./
COPY proto proto
COPY clients/rust clients/rust
# Not built, but Cargo requires the files of every target in the manifest.
COPY benches benches
RUN mkdir src \
    && echo 'fn main() {}' > src/main.rs \
    && touch src/lib.rs \
    && cargo build --release --locked \
    && rm -r src

COPY src src
# Cargo compares modification times, and COPY preserves them.
RUN touch src/main.rs src/lib.rs \
    && cargo build --release --locked \
    && install -D target/release/unstuck /out/unstuck \
    && install -d -o 65532 -g 65532 /out/data /out/key

# Only the C library and an unprivileged user: no shell, no package manager.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /out/unstuck /usr/local/bin/unstuck
# The store. Mount a volume here.
COPY --from=build --chown=65532:65532 /out/data /var/lib/unstuck
# The key of saved sessions, if [store] key_file names it. Mount another volume here.
COPY --from=build --chown=65532:65532 /out/key /var/lib/unstuck-key

# A number, so that Kubernetes can verify that it is not root.
USER 65532:65532
WORKDIR /var/lib/unstuck
EXPOSE 50551 50552
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 CMD ["/usr/local/bin/unstuck", "health"]
ENTRYPOINT ["/usr/local/bin/unstuck"]
CMD ["serve", "--log-format", "json"]
