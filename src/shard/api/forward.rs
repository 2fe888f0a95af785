//! Requests that any node takes and the controller decides: what is kept of one until its outcome comes.

use super::{Call, Flow, alter_configs, incremental_alter_configs};
use crate::meta::{Command, Outcome};
use crate::shard::cluster::Then;
use crate::shard::{Actions, Shard};
use crate::wire::ApiKey;

/// What this node already knows of the answer.
#[derive(Debug)]
pub enum Asked {
    AlterConfigs(Vec<alter_configs::Looked>),
}

impl Asked {
    /// The answer, once the controller has decided.
    pub(super) fn answer(&self, call: Call, outcome: &Outcome) -> Vec<u8> {
        let result = &outcome.result;
        match self {
            Asked::AlterConfigs(looked) if call.api == ApiKey::AlterConfigs => {
                alter_configs::altered(call, looked, result)
            }
            Asked::AlterConfigs(looked) => incremental_alter_configs::altered(call, looked, result),
        }
    }
}

impl Shard {
    pub(super) fn forward_asked(
        &mut self,
        call: Call,
        asked: Asked,
        command: Command,
        timeout_ms: u64,
        actions: &mut Actions,
    ) -> Flow {
        let asked = Box::new(asked);
        let id = self.propose(
            command,
            Then::Forwarded { call, asked },
            timeout_ms,
            actions,
        );
        if let Some(conn) = self.conns.get_mut(call.to.conn) {
            conn.parked = Some(id);
        }
        Flow::Parked
    }

    pub(in crate::shard) fn forwarded(
        &mut self,
        call: Call,
        asked: Asked,
        outcome: &Outcome,
        actions: &mut Actions,
    ) {
        let bytes = asked.answer(call, outcome);
        self.reply(call, bytes, actions);
    }
}
