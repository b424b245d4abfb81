//! `strata serve`: a model for other programs.

use std::net::{TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use strata_engine::host::{Host, HostOptions};
use strata_engine::prefix::DiskOptions;
use strata_engine::{EngineOptions, tokenizer_of};
use strata_server::{Access, ServerOptions};

use crate::error::CliError;
use crate::flags::ServeFlags;
use crate::{input, note, setup};

/// How long requests at work may go on when the server is asked to end.
const GRACE: Duration = Duration::from_secs(30);

pub(crate) fn serve(flags: &ServeFlags) -> Result<(), CliError> {
    // What is wrong with the address or the keys is told before a model is loaded.
    let (listener, is_local) = listen(flags)?;
    let access = access(flags, is_local)?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    // Nor is one loaded that has no words.
    tokenizer_of(&path)?;
    let engine_options = EngineOptions {
        drafts: setup::drafts(&flags.drafts),
        sequences: flags.parallel,
        checkpoints: flags.checkpoints,
        ..setup::engine_options(&flags.engine)
    };
    let engine = setup::open_telling(&path, &engine_options)?;
    let described = setup::describe(&engine);
    let host_options = HostOptions {
        parallel: flags.parallel,
        queue: flags.queue,
        stall_after: Duration::from_secs(flags.stall_s),
        checkpoints: flags.checkpoints,
        checkpoint_every_tokens: flags.checkpoint_every,
        disk: flags.prefix_disk.clone().map(|folder| DiskOptions {
            folder,
            bytes: flags.prefix_disk_gb,
            daily_bytes: DiskOptions::DAILY_BYTES,
        }),
    };
    let host = Arc::new(Host::start(engine, host_options)?);
    if let Err(problem) = host.template() {
        note::line(format_args!("strata: warning: only /v1/completions can be answered: {problem}"));
    }
    let options = ServerOptions {
        access,
        name: flags.name.clone(),
        body_bytes: (flags.max_body_mb as usize) << 20,
        fits_answers: flags.fit_answers,
        answer_time: flags.time_limit_s.map(Duration::from_secs),
        ..ServerOptions::default()
    };
    let address = listener.local_addr().map_err(|error| cannot_listen(&error))?;
    note::line(format_args!(
        "strata: {described}, {} requests at a time, {} tokens of context each\nstrata: ready at http://{address}",
        flags.parallel,
        host.context_tokens(),
    ));
    let at_once = i32::from(CliError::Interrupted.exit_code());
    strata_server::run(&host, listener, options, GRACE, at_once).map_err(|error| cannot_listen(&error))??;
    note::line("strata: ended");
    Ok(())
}

fn cannot_listen(error: &std::io::Error) -> CliError {
    CliError::Failed(format!("cannot take connections: {error}"))
}

/// Takes the address, and says whether only this machine can reach it.
fn listen(flags: &ServeFlags) -> Result<(TcpListener, bool), CliError> {
    let (host, port) = (flags.host.as_str(), flags.port);
    let unknown = |why: &str| CliError::Usage(format!("--host {host} is no address of this machine: {why}"));
    let addresses =
        (host.trim_matches(['[', ']']), port).to_socket_addrs().map_err(|error| unknown(&error.to_string()))?;
    let address = addresses.into_iter().next().ok_or_else(|| unknown("it has none"))?;
    let is_local = address.ip().is_loopback();
    let has_key = !flags.api_key.is_empty() || flags.api_key_file.is_some();
    if !is_local && !has_key && !flags.insecure {
        let text = format!(
            "--host {host} lets other machines ask: give --api-key-file or --api-key, or --insecure if everybody may"
        );
        return Err(CliError::Usage(text));
    }
    let listener = TcpListener::bind(address).map_err(|error| {
        let what_to_do = match error.kind() {
            std::io::ErrorKind::AddrInUse => ": another program uses this port, choose one with --port",
            std::io::ErrorKind::PermissionDenied => ": ports below 1024 need more rights, choose one with --port",
            _ => "",
        };
        CliError::Failed(format!("cannot listen at {address}: {error}{what_to_do}"))
    })?;
    Ok((listener, is_local))
}

fn access(flags: &ServeFlags, is_local: bool) -> Result<Access, CliError> {
    let mut api_keys = flags.api_key.clone();
    if let Some(path) = &flags.api_key_file {
        let text = input::text_file(path)?;
        // Some editors begin a file with a mark that is no part of its text.
        let keys = text.trim_start_matches('\u{feff}').lines().map(str::trim).filter(|key| !key.is_empty());
        api_keys.extend(keys.map(str::to_owned));
        if api_keys.is_empty() {
            return Err(CliError::Usage(format!("--api-key-file {}: it holds no key", path.display())));
        }
    }
    if api_keys.iter().any(|key| key.trim().is_empty()) {
        return Err(CliError::Usage("--api-key must not be empty".to_owned()));
    }
    // Others cannot be sent in a header as they are, and would let nobody in.
    if let Some(at) = api_keys.iter().position(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        let text =
            format!("API key {}: only ASCII letters, digits and signs, without spaces, can be sent as a key", at + 1);
        return Err(CliError::Usage(text));
    }
    let cors_origin = flags.cors_origin.as_ref().map(|origin| {
        let value = origin.trim_end_matches('/');
        let is_origin = value.split_once("://").is_some_and(|(scheme, host)| {
            let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'*' | b'?' | b'#' | b'@');
            !scheme.is_empty() && !host.is_empty() && host.bytes().all(is_plain)
        });
        let problem =
            || CliError::Usage(format!("--cors-origin {origin} is no origin of a page, such as https://chat.example"));
        if is_origin { value.parse().map_err(|_| problem()) } else { Err(problem()) }
    });
    Ok(Access { is_local_only: is_local && api_keys.is_empty(), api_keys, cors_origin: cors_origin.transpose()? })
}
