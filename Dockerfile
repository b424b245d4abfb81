# Strata's server, for machines that run containers. NOT BUILT where it was written (there was no Docker); its commands
# were run by hand, one by one. docs/quick-start.md says how to use it.
#
#     docker build -t strata .
#     docker run --rm -v models:/models strata pull OWNER/REPO:FILE
#     docker run -p 127.0.0.1:8080:8080 -v models:/models -v "$PWD/api-key:/run/secrets/api-key:ro" \
#         --ulimit memlock=-1 strata serve --host 0.0.0.0 --api-key-file /run/secrets/api-key -m OWNER/REPO:FILE

FROM rust:1.95-bookworm AS build
WORKDIR /strata
COPY . .
# The processor's instructions are chosen when the program runs: one build is for all of x86-64.
RUN cargo build --release --locked -p strata-cli

FROM debian:bookworm-slim
RUN useradd --system --uid 10001 --user-group --home-dir /models --no-create-home strata \
    && install -d -o strata -g strata /models
COPY --from=build /strata/target/release/strata /usr/local/bin/strata
# The small model that comes with Strata: what runs without -m, and what `strata doctor` checks arithmetic with.
COPY --from=build /strata/models/strata-mini /usr/local/models/strata-mini
# Pulled models, and what is kept of runs (which experts were used), outlive the container.
ENV HF_HOME=/models XDG_CACHE_HOME=/models/cache
VOLUME /models
USER strata
WORKDIR /models
EXPOSE 8080
# A large model takes a while to load. Neither curl nor wget is in the image; bash can open connections.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m --retries=3 CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /health HTTP/1.0\\r\\nHost: 127.0.0.1:8080\\r\\n\\r\\n' >&3 && read -r status <&3 && [[ $status == *' 200 '* ]]"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["strata"]
CMD ["serve", "--host", "0.0.0.0", "--api-key-file", "/run/secrets/api-key"]
