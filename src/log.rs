//! Log lines on stderr, from events of `tracing`.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::console::Console;

/// The environment variable that sets the level: `error`, `warn` (the default), `info`, `debug` or `trace`.
const VARIABLE: &str = "GNNFLOW_LOG";

/// Installs a subscriber that writes events of gnnflow's crates as lines of `console`. The existing subscriber of an embedding program
/// stays.
///
/// # Errors
/// If the environment variable does not name a level.
pub(crate) fn install(console: Console) -> Result<(), String> {
    let level = match std::env::var(VARIABLE) {
        Ok(text) => text.parse::<LevelFilter>().map_err(|_| {
            format!(
                "environment variable {VARIABLE} = `{text}` is not a log level; use error, warn, info, debug or trace"
            )
        })?,
        Err(_) => LevelFilter::WARN,
    };
    let own = Targets::new().with_target("gnnflow", level);
    // Fails only if the embedding program has a subscriber.
    let _ = Registry::default().with(Lines(console).with_filter(own)).try_init();
    Ok(())
}

/// Writes one line for each event.
struct Lines(Console);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = String::from(match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        });
        event.record(&mut Text(&mut line));
        self.0.say(&line);
    }
}

/// Collects an event's message, then its fields as `name=value`.
struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
