//! The exactness tools: `logits`, `dump`, `parity`, `kld` and `eval ppl`.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use strata_engine::{EngineOptions, exact};

use crate::error::CliError;
use crate::flags::{DumpFlags, KldFlags, LogitsFlags, ParityFlags, PplFlags};
use crate::interrupt::stoppable;
use crate::{input, interrupt, note, route, setup};

pub(crate) fn logits(flags: &LogitsFlags) -> Result<(), CliError> {
    interrupt::install()?;
    let text = flags.text.named()?;
    check_output(&flags.output)?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let mut engine = setup::open(&path, &setup::engine_options(&flags.engine))?;
    let ids = text.read(&engine, flags.pieces.limit)?;
    stoppable(|stop| exact::logits(&mut engine, &ids, &flags.pieces.pieces, &flags.output, stop))?;
    let shape = format!("[{}, {}]", ids.len(), engine.model().vocabulary());
    note::line(format_args!("{}: logits {shape}", flags.output.display()));
    Ok(())
}

pub(crate) fn dump(flags: &DumpFlags) -> Result<(), CliError> {
    interrupt::install()?;
    let text = flags.text.named()?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let mut options = setup::engine_options(&flags.engine);
    options.model.keep_details = true;
    let mut engine = setup::open(&path, &options)?;
    let ids = text.read(&engine, flags.pieces.limit)?;
    stoppable(|stop| exact::dump(&mut engine, &ids, &flags.pieces.pieces, &flags.output, stop))?;
    let (positions, layers) = (ids.len(), engine.model().config().layers);
    note::line(format_args!("{}: {positions} positions, {layers} layers", flags.output.display()));
    Ok(())
}

pub(crate) fn parity(flags: &ParityFlags) -> Result<(), CliError> {
    interrupt::install()?;
    // Runs are dumped to a directory of their own that goes away with this value.
    let scratch = tempfile::tempdir().map_err(|error| CliError::Failed(format!("no room for a dump: {error}")))?;
    let a = side(&flags.a, flags, &scratch.path().join("a"))?;
    let b = side(&flags.b, flags, &scratch.path().join("b"))?;
    let parity = exact::parity(&a, &b)?;
    if flags.json { print_parity_json(&parity) } else { print_parity(&parity, flags) }?;
    if parity.is_equal() { Ok(()) } else { Err(CliError::Differs) }
}

/// Whether a file can be written there, as far as can be seen: told before the run, not after it.
pub(crate) fn check_output(path: &Path) -> Result<(), CliError> {
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    let problem = if path.is_dir() {
        format!("{}: this is a directory; name a file to write", path.display())
    } else if !dir.is_dir() {
        format!("{}: there is no directory `{}` to write it in; make it first", path.display(), dir.display())
    } else {
        // What is neither a file nor to be one is left alone: whoever reads a pipe would see its end.
        let written = match path.exists() {
            true if path.is_file() => std::fs::OpenOptions::new().append(true).open(path).map(drop),
            true => Ok(()),
            false => tempfile::tempfile_in(dir).map(drop),
        };
        let Err(error) = written else { return Ok(()) };
        format!("{}: it cannot be written: {error}", path.display())
    };
    Err(CliError::Failed(problem))
}

/// The dump of one side: the directory that was named, or a new one made by the settings that were named.
fn side(named: &str, flags: &ParityFlags, scratch: &Path) -> Result<PathBuf, CliError> {
    let dir = Path::new(named);
    if dir.is_dir() {
        return Ok(dir.to_owned());
    }
    if named != "default" && !named.contains('=') {
        let text = format!("`{named}` is neither a directory nor settings such as `threads=1,pass=16` or `default`");
        return Err(CliError::Usage(text));
    }
    let Settings { model, options, pieces } = settings(named)?;
    let path = setup::model_path(model.as_deref().or(flags.model.model.as_deref()))?;
    let text = flags.text.named()?;
    let mut engine = setup::open(&path, &options)?;
    let ids = text.read(&engine, flags.limit)?;
    stoppable(|stop| exact::dump(&mut engine, &ids, &pieces, scratch, stop))?;
    Ok(scratch.to_owned())
}

/// One way to run a text.
struct Settings {
    model: Option<PathBuf>,
    options: EngineOptions,
    pieces: Vec<usize>,
}

/// Reads `key=value,key=value`.
fn settings(text: &str) -> Result<Settings, CliError> {
    let mut model = None;
    let mut options = EngineOptions::default();
    options.model.keep_details = true;
    let mut pieces = Vec::new();
    for setting in text.split(',').filter(|setting| *setting != "default") {
        let bad = || {
            CliError::Usage(format!(
                "`{setting}`: expected key=value with a key of model, threads, isa, precise, kv, context, pass, strip, gdn, \
                 qsa-block, pieces, memory-gb, arena-gb, lookahead, forecast-min, ple, io, io-depth"
            ))
        };
        let (key, value) = setting.split_once('=').ok_or_else(bad)?;
        let positive = |text: &str| text.parse().ok().filter(|n| *n > 0).ok_or_else(bad);
        match key {
            "model" => model = Some(PathBuf::from(value)),
            "pieces" => pieces = value.split(':').map(positive).collect::<Result<_, _>>()?,
            _ => setup::set_option(&mut options, key, value).ok_or_else(bad)?,
        }
    }
    Ok(Settings { model, options, pieces })
}

fn print_parity(parity: &exact::Parity, flags: &ParityFlags) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    for layer in &parity.layers {
        let exact::LayerParity { name, values, different_values, largest, route_mismatches } = layer;
        if *different_values == 0 {
            writeln!(out, "{name:<8}  equal      {values} values")?;
        } else {
            writeln!(
                out,
                "{name:<8}  different  {different_values} of {values} values, by at most {largest:e}; \
                 {route_mismatches} routes"
            )?;
        }
    }
    match &parity.first {
        None => writeln!(out, "equal: every byte of every layer")?,
        Some(first) => {
            let (a, b) = &first.values;
            writeln!(
                out,
                "first difference: {}, {}, position {}, value {}: {a} in {}, {b} in {}",
                first.layer, first.tensor, first.position, first.index, flags.a, flags.b
            )?;
        }
    }
    Ok(())
}

fn print_parity_json(parity: &exact::Parity) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    for layer in &parity.layers {
        let line = json!({
            "layer": layer.name, "equal": layer.different_values == 0, "values": layer.values,
            "different_values": layer.different_values, "largest_difference": layer.largest,
            "route_mismatches": layer.route_mismatches,
        });
        writeln!(out, "{line}")?;
    }
    let first = parity.first.as_ref().map(|first| {
        json!({
            "layer": first.layer, "tensor": first.tensor, "position": first.position, "index": first.index,
            "a": first.values.0, "b": first.values.1,
        })
    });
    let mismatches: usize = parity.layers.iter().map(|layer| layer.route_mismatches).sum();
    let line = json!({ "equal": parity.is_equal(), "route_mismatches": mismatches, "first_difference": first });
    Ok(writeln!(out, "{line}")?)
}

pub(crate) fn kld(flags: &KldFlags) -> Result<(), CliError> {
    interrupt::install()?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let options = setup::engine_options(&flags.engine);
    match (&flags.what.save, &flags.what.against) {
        (Some(save), _) => {
            let text = flags.text.named()?;
            check_output(save)?;
            let mut engine = setup::open(&path, &options)?;
            let ids = text.read(&engine, flags.limit)?;
            stoppable(|stop| exact::save_logits(&mut engine, &ids, save, stop))?;
            note::line(format_args!("{}: {} positions", save.display(), ids.len()));
            Ok(())
        }
        (None, Some(against)) => {
            let mut engine = setup::open(&path, &options)?;
            let divergence = stoppable(|stop| exact::divergence(&mut engine, against, stop))?;
            print_divergence(&divergence, flags.json)
        }
        (None, None) => Err(CliError::Usage("give --save or --against".to_owned())),
    }
}

fn print_divergence(d: &exact::Divergence, as_json: bool) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    if as_json {
        let line = json!({
            "positions": d.positions, "mean_kl": d.mean_kl, "max_kl": d.max_kl, "top1_agreement": d.top1_agreement,
            "perplexity": d.perplexity, "recorded_perplexity": d.recorded_perplexity,
        });
        writeln!(out, "{line}")?;
    } else {
        writeln!(out, "positions        {}", d.positions)?;
        writeln!(out, "mean KL          {:.3e} nats", d.mean_kl)?;
        writeln!(out, "max KL           {:.3e} nats", d.max_kl)?;
        writeln!(out, "top-1 agreement  {:.2} %", d.top1_agreement * 100.0)?;
        writeln!(out, "perplexity       {:.4} (recorded: {:.4})", d.perplexity, d.recorded_perplexity)?;
    }
    Ok(())
}

pub(crate) fn perplexity(flags: &PplFlags) -> Result<(), CliError> {
    interrupt::install()?;
    let path = setup::model_path(flags.file.as_deref())?;
    let mut options = setup::engine_options(&flags.engine);
    let window = flags.window as usize;
    options.model.context_tokens = options.model.context_tokens.or(Some(window));
    let text = input::text_file(&flags.text)?;
    let mut engine = setup::open(&path, &options)?;
    let mut ids = engine.tokenizer()?.encode(&text, false).map_err(strata_engine::EngineError::from)?;
    ids.truncate(flags.limit.unwrap_or(usize::MAX));
    let is_terminal = std::io::stderr().is_terminal();
    let result = stoppable(|stop| {
        exact::perplexity(&mut engine, &ids, window, stop, |so_far, windows| {
            if is_terminal {
                note::part(format_args!("\rwindow {} of {windows}: {:.4}", so_far.windows, so_far.second_half));
            }
        })
    });
    if is_terminal {
        note::line("");
    }
    let p = result?;
    let mut out = std::io::stdout().lock();
    if flags.json {
        let mut line = json!({
            "tokens": ids.len(), "windows": p.windows, "window_tokens": p.window_tokens,
            "perplexity_all": p.all, "perplexity_second_half": p.second_half,
        });
        if let (Some(receipt), Some(moce)) = (&p.routes, engine.moce()) {
            line["moce"] = route::settings_json(&moce);
            line["routes"] = route::json(receipt);
        }
        writeln!(out, "{line}")?;
    } else {
        writeln!(out, "{} tokens, {} windows of {}", ids.len(), p.windows, p.window_tokens)?;
        writeln!(out, "perplexity, all predictions   {:.4}", p.all)?;
        writeln!(out, "perplexity, second halves     {:.4}", p.second_half)?;
        if let Some(table) = p.routes.as_ref().and_then(|receipt| route::table(&engine, receipt)) {
            writeln!(out, "routes of second halves       {table}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use strata_engine::{GdnForm, Isa};

    use super::*;

    #[test]
    fn settings_are_read_and_checked() {
        let Settings { model, options, pieces } =
            settings("model=a/b.gguf,threads=1,isa=portable,pass=16,gdn=chunked,pieces=7:1:20").unwrap();
        assert_eq!(model, Some(PathBuf::from("a/b.gguf")));
        assert_eq!((options.threads, options.isa, options.pass_tokens), (1, Some(Isa::Portable), Some(16)));
        assert_eq!((options.model.gdn_form, pieces), (GdnForm::Chunked, vec![7, 1, 20]));
        assert!(settings("default").is_ok());
        for bad in [
            "threads",
            "threads=x",
            "pass=0",
            "color=red",
            "isa=sse",
            "gdn=",
            "pieces=1:0",
            "pieces=",
            "threads=1000000",
            "",
        ] {
            assert!(matches!(settings(bad), Err(CliError::Usage(_))), "{bad}");
        }
    }
}
