´
¢u
.
Identity

input"T
output"T"	
Ttype
C
Placeholder
output"dtype"
dtypetype"
shapeshape:"serve*2.21.02v2.21.0-rc1-5-ga481b10260d¡
\
xPlaceholder*#
_output_shapes
:ÿÿÿÿÿÿÿÿÿ*
dtype0*
shape:ÿÿÿÿÿÿÿÿÿ
D
yPartitionedCallx*
Tin
2*
Tout
2*
f	R
againv
t

again
a
bG
callPartitionedCalla*
Tin
2*
Tout
2*
f	R
again"
bcall:output:0"ª*i
serving_defaultV

x
x:0ÿÿÿÿÿÿÿÿÿ
y
y:0ÿÿÿÿÿÿÿÿÿtensorflow/serving/predict