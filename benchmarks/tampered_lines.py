"""Lines of HLO that communicate, to be put into modules that should not have them."""

# With a type of the result (t: gathered, s: as it is) and groups g to fill in.
EXTRA = {
    "all-reduce": "  %tamper = {s} all-reduce(%tamper_x), replica_groups={g}, to_apply=%tamper_add",
    "all-gather": "  %tamper = {t} all-gather(%tamper_x), replica_groups={g}, dimensions={{0}}",
    "reduce-scatter": "  %tamper = {s} reduce-scatter(%tamper_x), replica_groups={g}, "
    "dimensions={{0}}, to_apply=%tamper_add",
    "all-to-all": "  %tamper = {s} all-to-all(%tamper_x), replica_groups={g}, dimensions={{0}}",
    "collective-permute": "  %tamper = {s} collective-permute(%tamper_x), "
    "source_target_pairs={{{{0,1}},{{1,0}}}}",
}
# As they are.
OTHER = {
    "send": "  %tamper = (f32[16]{0}, u32[], token[]) send(%tamper_x, %tamper_t), channel_id=99",
    "recv": "  %tamper = (f32[16]{0}, u32[], token[]) recv(%tamper_t), channel_id=99",
    "infeed": "  %tamper = ((f32[16]{0}), token[]) infeed(%tamper_t)",
    "outfeed": "  %tamper = token[] outfeed(%tamper_x, %tamper_t)",
    "custom-call": '  %tamper = f32[16]{0} custom-call(%tamper_x), custom_call_target="mpi_sum"',
    "custom-call-start": "  %tamper = ((f32[16]{0}), f32[16]{0}, u32[]) "
    'custom-call-start(%tamper_x), custom_call_target="ring_exchange"',
    "collective-broadcast": "  %tamper = f32[16]{0} collective-broadcast(%tamper_x), "
    "replica_groups={{0,1,2,3,4,5,6,7}}",
    "ragged-all-to-all": "  %tamper = f32[16]{0} ragged-all-to-all(%tamper_x, %tamper_x, %i, %i, "
    "%i, %i), replica_groups={{0,1,2,3,4,5,6,7}}",
    "unknown opcode": "  %tamper = f32[16]{0} all-exchange(%tamper_x)",
    "unknown dtype": "  %tamper = f3[16]{0} all-reduce(%tamper_x), replica_groups={}",
    "unknown asynchronous opcode": "  %tamper = f32[16]{0} remote-copy-start(%tamper_x)",
    "local opcode with groups": "  %tamper = f32[16]{0} copy(%tamper_x), replica_groups={{0,1}}",
}
# With groups g to fill in.
ASYNC = {
    "all-gather-start": "  %tamper = (f32[2]{{0}}, f32[16]{{0}}) all-gather-start(%tamper_x), "
    "replica_groups={g}, dimensions={{0}}",
    "all-reduce-start": "  %tamper = f32[16]{{0}} all-reduce-start(%tamper_x), replica_groups={g}, "
    "to_apply=%tamper_add",
    "combined all-gather-start": "  %tamper = ((f32[2]{{0}}, u16[2]{{0}}), (f32[16]{{0}}, "
    "u16[16]{{0}})) all-gather-start(%tamper_x, %tamper_y), replica_groups={g}, dimensions={{0}}",
    "reduce-scatter-start": "  %tamper = ((f32[16]{{0}}), f32[2]{{0}}) "
    "reduce-scatter-start(%tamper_x), replica_groups={g}, dimensions={{0}}, to_apply=%tamper_add",
    "all-to-all-start": "  %tamper = ((f32[16]{{0}}), f32[16]{{0}}) all-to-all-start(%tamper_x), "
    "replica_groups={g}, dimensions={{0}}",
    "collective-permute-start": "  %tamper = (f32[16]{{0}}, f32[16]{{0}}, u32[], u32[]) "
    "collective-permute-start(%tamper_x), source_target_pairs={{{{0,1}},{{1,0}}}}",
}
