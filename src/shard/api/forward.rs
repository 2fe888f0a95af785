//! Requests that any node takes and the controller decides: what is kept of one until its outcome comes.

use super::{
    Call, Flow, alter_configs, alter_partition_reassignments, describe_quorum, elect_leaders,
    incremental_alter_configs, unregister_broker, update_features,
};
use crate::meta::{Command, Outcome};
use crate::shard::cluster::Then;
use crate::shard::{Actions, Shard};
use crate::wire::ApiKey;

/// What this node already knows of the answer.
#[derive(Debug)]
pub enum Asked {
    AlterConfigs(Vec<alter_configs::Looked>),
    /// What was asked for.
    ElectLeaders(Option<Vec<(String, Vec<i32>)>>),
    MoveReplicas {
        factor_may_change: bool,
    },
    DescribeQuorum(Box<describe_quorum::DescribeQuorumAsked>),
    /// Names of the features.
    UpdateFeatures(Vec<String>),
    UnregisterNode,
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
            Asked::ElectLeaders(asked) => elect_leaders::elected(call, asked, result),
            Asked::MoveReplicas { factor_may_change } => {
                alter_partition_reassignments::moved(call, *factor_may_change, result)
            }
            Asked::DescribeQuorum(asked) => describe_quorum::described(call, asked, result),
            Asked::UpdateFeatures(names) => update_features::updated(call, names, result),
            Asked::UnregisterNode => unregister_broker::unregistered(call, result),
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
